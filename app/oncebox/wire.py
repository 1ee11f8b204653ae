"""Wire: HTTP/1.1 as it is read from a connection, with a limit to what may come before a body."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oncebox.direct import Direct
from oncebox.logs import Seldom
from oncebox.problem import CONTENT_TYPE, blank, problem

# What senders and the proxies before them add stays far below; the parser itself would take any number.
HEAD = 64 << 10
MOST = 0.9
TOO_BIG = f"the request line and headers are larger than {HEAD >> 10} KiB"
FRAMING = (b"content-length", b"transfer-encoding")
FAILED = blank(500, "the request could not be judged; send it again later. The server's log says why")
NO_HTTP = "this is not an HTTP/1.1 request that can be understood"

log = logging.getLogger("oncebox.server")
# Whoever sends such things sends many of them.
refusals = {400: Seldom(log, NO_HTTP), 431: Seldom(log, TOO_BIG)}


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

    def write_whole(self, answer: bytes) -> None:
        """Send a whole answer."""
        self.flush()
        self._transport.write(answer)

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
    """Answers a head over the limit with 431 and what is no HTTP with 400, as problems, then hangs up.

    An application that has `takes(method, url)` gets what it takes by `direct(…, reply)` if it came whole in one piece:
    most events do, and a task with its messages costs more than all that is done in it.
    """

    _in_head = False
    _too_big = False
    _again = False
    _head = 0
    _chunk = 0
    _answering: RequestResponseCycle | None = None
    _takes: Callable[[bytes, bytes], bool] | None = None
    _resting_since = inf
    _dated = b""
    _dated_from: object = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Corked(transport))  # type: ignore[arg-type]  # it is one by its methods
        self._takes = getattr(self.app, "takes", None)

    def dated(self) -> bytes:
        """uvicorn's default headers, which it makes anew every second, as they are sent."""
        pairs = self.server_state.default_headers
        if pairs is not self._dated_from:
            self._dated_from = pairs
            self._dated = b"".join([b"%s: %s\r\n" % pair for pair in pairs])
        return self._dated

    def data_received(self, data: bytes) -> None:
        self._chunk = len(data)
        if self._in_head:
            self._head += self._chunk
        self._read(data)
        direct: Any = self.cycle
        if type(direct) is Direct and direct.more_body and not self.transport.is_closing():
            self._give_to_a_task(direct)
        if self._in_head and self._head > HEAD and not self.transport.is_closing():
            self._too_big = True
            self.send_400_response(TOO_BIG)

    def _read(self, data: bytes) -> None:
        """The parent's reading, without its line or two in the log for each request that is none."""
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._stay()
                continue
            except httptools.HttpParserError:
                self.send_400_response(NO_HTTP)
            return

    def _stay(self) -> None:
        """Nobody has to change protocols when asked (RFC 9110, 7.8), and Java's client asks with each POST. The parser
        takes a body for the other protocol then: it is told again how the body is framed, and nothing else."""
        if framing := self._framing():
            self._again = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % framing)
            self._again = False

    def _framing(self) -> bytes:
        return b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] in FRAMING)

    def on_message_begin(self) -> None:
        if self._again:
            return
        self._in_head, self._head = True, 0
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        if not self._again:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._again:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._again:
            return
        self._in_head = False
        if self._head + self._chunk > HEAD and self._size() > HEAD:
            self._too_big = True
            raise HeadTooBig
        if self._is_direct():
            self.cycle = Direct(self)  # type: ignore[assignment]  # a cycle by its attributes
        else:
            self._begin()
        if not self.pipeline:
            self._answering = self.cycle

    def _is_direct(self) -> bool:
        parser = self.parser
        before: Any = self.cycle  # None until the first request
        return (
            self._takes is not None
            and (before is None or before.response_complete)
            and not self.expect_100_continue
            and parser.should_keep_alive()
            and not parser.should_upgrade()
            and not self.flow.write_paused
            and parser.get_http_version() == "1.1"
            and self._takes(parser.get_method(), self.url)
        )

    def _begin(self) -> None:
        """A task of its own for the request whose head has been read."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _give_to_a_task(self, direct: Direct) -> None:
        """The rest of its body is still to come, and may take its time."""
        direct.response_complete = True
        self._begin()
        if direct.body:
            self.on_body(bytes(direct.body))
        self._answering = self.cycle

    def on_message_complete(self) -> None:
        if self._again or not (self.parser.should_upgrade() and self._framing()):
            super().on_message_complete()
        direct: Any = self.cycle
        if type(direct) is Direct and not direct.response_complete:
            self._answer_directly(direct)

    def _answer_directly(self, direct: Direct) -> None:
        app: Any = self.app
        try:
            app.direct(self.url, self.headers, bytes(direct.body), self.scheme, self.client, direct.reply)
        except Exception as error:
            log.error("request failed", exc_info=error)
            if not direct.response_complete:
                direct.reply(500, CONTENT_TYPE, FAILED)

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # it is Corked
        self._answering = self.pipeline[-1][0] if self.pipeline else None
        if self._answering is not None:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._rest()

    def _rest(self) -> None:
        """One timer for as long as requests follow each other; when it rings it looks whether one came lately."""
        self._resting_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self._close_at_rest)

    def _close_at_rest(self) -> None:
        self.timeout_keep_alive_task = None
        if self._resting_since == inf:
            return
        left = self.timeout_keep_alive - (self.loop.time() - self._resting_since)
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self._close_at_rest)
        else:
            self.timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        self._resting_since = inf

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
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
        refusals[status].say(f"peer={self.client[0] if self.client else 'unknown'}", time.monotonic())
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
