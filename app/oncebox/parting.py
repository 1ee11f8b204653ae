"""Parting: how a connection ends that is at fault, or whose client has said all that it has to say."""

from __future__ import annotations

import logging
from typing import Any

from oncebox.beneath import STATUS_LINE, HttpToolsProtocol
from oncebox.body import SLOWEST
from oncebox.corked import Corked
from oncebox.problem import CONTENT_TYPE, problem
from oncebox.seldom import Seldom
from oncebox.unread import Unread

# What senders and the proxies before them add stays far below; the parser itself would take any number.
HEAD = 64 << 10
REFUSALS = {
    400: ("bad-request", "this is not an HTTP/1.1 request that can be understood"),
    408: ("bad-request", f"the request was not complete after {SLOWEST:.0f} s or more"),
    431: ("too-large", f"the request line and headers are larger than {HEAD >> 10} KiB"),
}

# Whoever sends such things sends many of them.
seldom = Seldom(logging.getLogger("oncebox.server"), logging.WARNING)


class Parting(HttpToolsProtocol):
    """A connection that knows which answers it still owes.

    `_answering` is the request whose turn it is, `cycle` the one that was read last, the others are in `pipeline`.
    """

    flow: Unread
    _in_head = False
    _begun = 0
    _answering: Any = None
    _no_more = False
    _refused = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Corked(transport, self.loop))  # type: ignore[arg-type]  # it is one by its methods
        self.flow = Unread(self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.watch()  # type: ignore[attr-defined]  # it is Corked

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it, unlike uvicorn
        """Nothing more comes, but the client may still listen: what came whole is answered, and nothing else."""
        self._no_more = True
        if not self.flow.rest:
            self.close_behind_the_last()
        return True

    def close_behind_the_last(self) -> None:
        """Answer the requests that came whole, then close."""
        last = self._last_to_answer()
        if last is None:
            self.transport.close()
        else:
            last.keep_alive = False

    def refuse(self, status: int) -> None:
        """Refuse what was read last, when it is its turn: whole requests before it get their own answers first."""
        self._in_head = False
        self.flow.drop()
        if self.transport.is_closing():
            return
        slug, detail = REFUSALS[status]
        peer = self.client[0] if self.client else "unknown"
        seldom.say(self.loop.time(), str(status), f"request refused peer={peer}: {detail}")
        if self._last_to_answer() is not None:
            self._refused = status
            self.flow.end()
            return
        if not self._has_its_answer():
            body = problem(status, slug, detail)
            head = f"content-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()

    def _last_to_answer(self) -> Any:
        """The last request that came whole; None if it has been answered, or if the one before what came is none."""
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._answering
        last: Any = self.cycle  # None until the first request
        return None if last is None or last.response_complete or last.more_body else last

    def _has_its_answer(self) -> bool:
        """Whether an answer to the request that has not ended is sent or begun. If not, its application may not begin
        one any more."""
        unended: Any = self.cycle
        if unended is None or not unended.more_body:
            return False
        if unended.response_complete or getattr(unended, "response_started", False):
            return True
        unended.disconnected = True
        unended.message_event.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.transport.gone()  # type: ignore[attr-defined]  # it is Corked
        self.flow.drop()
        # The parent tells the last request of several only; the others would write into a closed connection.
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()
