"""Patience: how long a connection may rest between requests, and how long what comes in at a stop may take."""

from __future__ import annotations

from math import inf

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 0.9


class Patience(HttpToolsProtocol):
    """Closes a connection at rest by one timer for as long as requests follow each other: when it rings it looks
    whether one came lately."""

    _resting_since = inf

    def rest(self) -> None:
        """All is answered that has come."""
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

    def shutdown(self) -> None:
        """The server stops: what is still coming in has nearly all of the time that uvicorn gives before it cancels."""
        super().shutdown()
        patience = self.config.timeout_graceful_shutdown
        if patience:
            self.loop.call_later(patience * MOST, self._hang_up)

    def _hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
