"""Wire: HTTP/1.1 as it is read from a connection, with a limit to what may come before a body."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from oncebox.corked import Corked
from oncebox.direct import Direct
from oncebox.logs import Seldom
from oncebox.patience import Patience
from oncebox.problem import CONTENT_TYPE, blank, problem
from oncebox.unread import PIECE, Unread

# What senders and the proxies before them add stays far below; the parser itself would take any number.
HEAD = 64 << 10
TOO_BIG = f"the request line and headers are larger than {HEAD >> 10} KiB"
FRAMING = (b"content-length", b"transfer-encoding")
FAILED = blank(500, "the request could not be judged; send it again later. The server's log says why")
NO_HTTP = "this is not an HTTP/1.1 request that can be understood"

log = logging.getLogger("oncebox.server")
# Whoever sends such things sends many of them.
refusals = {400: Seldom(log, NO_HTTP), 431: Seldom(log, TOO_BIG)}


class HeadTooBig(Exception):
    """Ends the parsing of a request."""


class Protocol(Patience):
    """Answers a head over the limit with 431 and what is no HTTP with 400, as problems, then hangs up. Of requests that
    come behind others it parses a few at a time, and no more while those wait.

    An application that has `takes(method, url)` gets what it takes by `direct(…, reply)` if it came whole in one piece:
    most events do, and a task with its messages costs more than all that is done in it.
    """

    flow: Unread
    _in_head = False
    _in_chunks = False
    _too_big = False
    _again = False
    _goes_on = False
    _head = 0
    _begun = 0
    _answering: RequestResponseCycle | None = None
    _takes: Callable[[bytes, bytes], bool] | None = None
    _dated = b""
    _dated_from: object = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Corked(transport))  # type: ignore[arg-type]  # it is one by its methods
        self.flow = Unread(self.transport)
        self._takes = getattr(self.app, "takes", None)

    def dated(self) -> bytes:
        """uvicorn's default headers, which it makes anew every second, as they are sent."""
        pairs = self.server_state.default_headers
        if pairs is not self._dated_from:
            self._dated_from = pairs
            self._dated = b"".join([b"%s: %s\r\n" % pair for pair in pairs])
        return self._dated

    def data_received(self, data: bytes) -> None:
        if len(data) > PIECE or self.pipeline or self.flow.rest:
            self.flow.add(data)
            self._go_on()
            return
        self._read(data)
        direct: Any = self.cycle
        if type(direct) is Direct and direct.more_body:
            self._leave_rest_to_a_task(direct)

    def _go_on(self) -> None:
        """Parse what is unread until a request has to wait; after every few others get their turn."""
        self._goes_on = False
        second, unread = self._begun + 2, self.flow
        while unread.rest and not self.pipeline and self._begun < second:
            if self.transport.is_closing():
                unread.drop()
                break
            self._read(unread.next())
        if unread.rest:
            unread.pause_reading()
            self._go_on_soon()
            return
        direct: Any = self.cycle
        if type(direct) is Direct and direct.more_body:
            self._leave_rest_to_a_task(direct)
        if not self.pipeline:
            unread.resume_reading()

    def _go_on_soon(self) -> None:
        """Unless nothing is left or it has to wait for an answer."""
        if self.flow.rest and not self.pipeline and not self._goes_on:
            self._goes_on = True
            self.loop.call_soon(self._go_on)

    def _read(self, data: bytes) -> None:
        """The parent's reading, without its line or two in the log for each request that is none."""
        self._unset_keepalive_if_required()
        if self._in_head or self._in_chunks:
            self._head += len(data)
            if self._head > HEAD + PIECE:
                self._too_big = True
                self.send_400_response(TOO_BIG)
                return
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
        self._begun += 1
        self.url, self.headers, self.expect_100_continue = b"", [], False

    # These three do what the parent's do: each call more is paid by every header of every request.
    def on_url(self, url: bytes) -> None:
        if not self._again:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes behind the chunks of a body proves and names nothing (RFC 9110, 6.5.1).
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_chunk_header(self) -> None:
        self._in_chunks, self._head = True, 0

    def on_body(self, body: bytes) -> None:
        self._head = 0
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_headers_complete(self) -> None:
        if self._again:
            return
        self._in_head = False
        if self._head + PIECE > HEAD and self._size() > HEAD:
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

    def _leave_rest_to_a_task(self, direct: Direct) -> None:
        """What is still to come of a body may take its time."""
        if self.transport.is_closing():
            return
        direct.response_complete = True
        self._begin()
        if direct.body:
            self.on_body(bytes(direct.body))
        self._answering = self.cycle

    def on_message_complete(self) -> None:
        direct: Any = self.cycle
        if type(direct) is not Direct:
            if self._again or not (self.parser.should_upgrade() and self._framing()):
                super().on_message_complete()
        elif not direct.response_complete:
            direct.more_body = False
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
            self._go_on_soon()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.flow.rest:
                self._go_on_soon()
            self.rest()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.flow.drop()
        # The parent tells the last request of several only; the others would write into a closed connection.
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def send_400_response(self, _msg: str) -> None:
        """Refuse what was read last; whole requests before it get their own answers, and nothing after that."""
        status, slug, detail = (431, "too-large", TOO_BIG) if self._too_big else (400, "bad-request", NO_HTTP)
        refusals[status].say(f"peer={self.client[0] if self.client else 'unknown'}", time.monotonic())
        self._in_head = False
        self.flow.drop()
        last = self._last_to_answer()
        if last is not None:
            last.keep_alive = False
            self.flow.pause_reading()
            return
        if getattr(self._answering, "response_started", False):
            # It has begun an answer while the rest of its body came; a second one would look like a part of that.
            self.transport.close()
            return
        body = problem(status, slug, detail)
        head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (
            CONTENT_TYPE.encode(),
            len(body),
        )
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def _last_to_answer(self) -> Any:
        """The request before one that cannot be read; None if that has been answered or is the one itself."""
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._answering  # type: ignore[assignment]
        last: Any = self.cycle  # None until the first request
        return None if last is None or last.response_complete or last.more_body else last

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
