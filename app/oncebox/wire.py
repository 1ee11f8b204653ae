"""Wire: HTTP/1.1 as it is read from a connection, with a limit to what may come before a body."""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oncebox.problem import CONTENT_TYPE, problem

# What senders and the proxies before them add stays far below; the parser itself would take any number.
HEAD = 64 << 10
MOST = 0.9
TOO_BIG = f"the request line and headers are larger than {HEAD >> 10} KiB"
NO_HTTP = "this is not an HTTP/1.1 request that can be understood"

log = logging.getLogger("oncebox.server")


class HeadTooBig(Exception):
    """Ends the parsing of a request."""


class Corked:
    """A transport that sends the head of an answer together with its body: one system call and one packet for two.

    Only a head that announces a length waits, since its body is written right behind it.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, or keep a head until the next piece."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and b"\r\ncontent-length: " in data and data.endswith(b"\r\n\r\n"):
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Send a head that no body follows."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Send what waits, then close."""
        self.flush()
        self._transport.close()


class Protocol(HttpToolsProtocol):
    """Answers a head over the limit with 431 and what is no HTTP with 400, as problems, then hangs up."""

    _in_head = False
    _too_big = False
    _head = 0
    _chunk = 0
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Corked(transport))  # type: ignore[arg-type]  # it is one by its methods

    def data_received(self, data: bytes) -> None:
        self._chunk = len(data)
        if self._in_head:
            self._head += self._chunk
        super().data_received(data)
        if self._in_head and self._head > HEAD and not self.transport.is_closing():
            self._too_big = True
            self.send_400_response(TOO_BIG)

    def on_message_begin(self) -> None:
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head + self._chunk > HEAD and self._size() > HEAD:
            self._too_big = True
            raise HeadTooBig
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # it is Corked
        following = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        self._answering = following

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # The parent tells the last request of several only; the others would write into a closed connection.
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def shutdown(self) -> None:
        """The server stops: what is still coming in has nearly all of the time that uvicorn gives before it cancels."""
        super().shutdown()
        patience = self.config.timeout_graceful_shutdown
        if patience:
            self.loop.call_later(patience * MOST, self._hang_up)

    def _hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, _msg: str) -> None:
        """Refuse what was read last; a whole request before it gets its own answer, and nothing after that."""
        status, slug, detail = (431, "too-large", TOO_BIG) if self._too_big else (400, "bad-request", NO_HTTP)
        if self._too_big:  # the other case has been logged
            log.warning("request refused status=%d peer=%s: %s", status, self.client, detail)
        self._in_head = False
        before: Any = self.cycle  # None until the first request
        if before is not None and not before.more_body and not before.response_complete:
            before.keep_alive = False
            self.flow.pause_reading()
            return
        body = problem(status, slug, detail)
        head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (
            CONTENT_TYPE.encode(),
            len(body),
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
