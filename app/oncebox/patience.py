"""Patience: how long a connection may rest or send, and how long what comes in at a stop may take."""

from __future__ import annotations

from math import inf
from typing import Any

from oncebox.body import SLOWEST
from oncebox.parting import Parting

MOST = 0.9
# Whoever reads a body has this limit, too, and answers; others wait for as long as it takes, which ends here.
HEAD, WHOLE = SLOWEST, 2 * SLOWEST


class Patience(Parting):
    """Ends connections that wait for their client alone: at rest, or with a request that does not come to its end.

    One timer looks every few seconds where a connection stands, so that requests which follow each other pay nothing.
    It rings from the start on, but not while an answer is in the making.
    """

    _resting_since = inf
    _coming = 0
    _coming_since = inf

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._coming, self._coming_since = 0, self.loop.time()
        self.watch()

    def rest(self) -> None:
        """All is answered that has come."""
        self._resting_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self._look)

    def watch(self) -> None:
        """A request has its turn that may not have come whole."""
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self._look)

    def _look(self) -> None:
        self.timeout_keep_alive_task = None
        if self.transport.is_closing() or self._is_making_an_answer():
            return
        left = self._left(self.loop.time())
        if left > 0:
            next_look = min(left, self.timeout_keep_alive)
            self.timeout_keep_alive_task = self.loop.call_later(next_look, self._look)
        elif self._in_head or self._answering is not None:
            self.refuse(408)
        else:
            self.timeout_keep_alive_handler()

    def _is_making_an_answer(self) -> bool:
        return self._answering is not None and not self._answering.more_body

    def _left(self, now: float) -> float:
        """The time that the client still has."""
        if self._resting_since < inf and not self._in_head:
            return self._resting_since + self.timeout_keep_alive - now
        if self._coming != self._begun or self.flow.read_paused:
            self._coming, self._coming_since = self._begun, now
        is_head = self._in_head or not self._begun
        return self._coming_since + (HEAD if is_head else WHOLE) - now

    def _unset_keepalive_if_required(self) -> None:
        self._resting_since = inf

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def shutdown(self) -> None:
        """The server stops: what is still coming in has nearly all of the time that uvicorn gives before it cancels."""
        super().shutdown()
        patience = self.config.timeout_graceful_shutdown
        if patience:
            self.loop.call_later(patience * MOST, self._hang_up)

    def _hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
