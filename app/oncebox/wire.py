"""Wire: HTTP/1.1 as it is read from a connection, with a limit to what may come before a body."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httptools

from oncebox.beneath import HIGH_WATER_LIMIT
from oncebox.direct import Direct
from oncebox.origin import called, origin_form
from oncebox.parting import HEAD
from oncebox.patience import Patience
from oncebox.problem import CONTENT_TYPE, blank
from oncebox.seldom import Seldom, kind_of
from oncebox.unread import PIECE

FRAMING = (b"content-length", b"transfer-encoding")
FAILED = blank(500, "the request could not be judged; send it again later. The server's log says why")

faults = Seldom(logging.getLogger("oncebox.server"))


class Enough(Exception):
    """Ends the parsing: the head is too big, or the connection ends with the answer that was given."""


class Protocol(Patience):
    """Answers a head over the limit with 431 and what is no HTTP with 400, as problems, then hangs up. Of requests that
    come behind others it parses a few at a time, and no more while those wait.

    An application that has `takes(method, url)` gets what it takes by `direct(…, reply)` if it came whole in one piece:
    most events do, and a task with its messages costs more than all that is done in it.
    """

    _in_chunks = False
    _too_big = False
    _again = False
    _goes_on = False
    _head = 0
    _takes: Callable[[bytes, bytes], bool] | None = None
    _dated = b""
    _dated_from: object = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
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
        while unread.rest and not self.pipeline and self._begun < second and not self._refused:
            if self.transport.is_closing():
                unread.drop()
                break
            self._read(unread.next())
        if self._refused:
            if self._answering is None:
                self.refuse(self._refused)
            return
        if unread.rest:
            unread.pause_reading()
            self._go_on_soon()
            return
        direct: Any = self.cycle
        if type(direct) is Direct and direct.more_body:
            self._leave_rest_to_a_task(direct)
        if self._no_more:
            self.close_behind_the_last()
        elif not self.pipeline:
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
                self.refuse(431)
                return
        while data:
            try:
                try:
                    self.parser.feed_data(data)
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._stay()
                    continue
            except httptools.HttpParserError:
                self.refuse(431 if self._too_big else 400)
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
            raise Enough
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
        if not url.startswith(b"/") and (whole := origin_form(url)):
            url, headers = whole[0], called(headers, whole[1])
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
        cycle: Any = self.cycle
        if type(cycle) is not Direct:
            if self._again or not (self.parser.should_upgrade() and self._framing()):
                super().on_message_complete()
                cycle.more_body = False  # the parent leaves it where the answer came first
        elif not cycle.response_complete:
            cycle.more_body = False
            self._answer_directly(cycle)
            if not cycle.keep_alive:
                raise Enough

    def _answer_directly(self, direct: Direct) -> None:
        app: Any = self.app
        try:
            app.direct(self.url, self.headers, bytes(direct.body), self.scheme, self.client, direct.reply)
        except Exception as error:  # noqa: BLE001  # it is told, though not each time
            faults.say(self.loop.time(), kind_of(error), "request failed", error)
            if not direct.response_complete:
                direct.reply(500, CONTENT_TYPE, FAILED)

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]  # it is Corked
        self._answering = self.pipeline[-1][0] if self.pipeline else None
        if self._answering is not None:
            super().on_response_complete()
            self._go_on_soon()
            self.watch()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.flow.rest:
                self._go_on_soon()
            self.rest()

    def _size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
