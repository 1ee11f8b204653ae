"""Limits: how many deliveries of one target may start now, whatever slots are free."""

from __future__ import annotations

from collections.abc import Callable

from oncebox.drain.outage import Outage
from oncebox.drain.pace import Pace

# So many a second beside a crowd of accepts, which come first: what waits is on disk.
COURTESY = 800.0


class Limits:
    """The target's rate, its breaker, and beside a crowd the courtesy. Times are monotonic seconds."""

    def __init__(self, rate: float | None, outage: Outage | None, crowded: Callable[[], bool]) -> None:
        self._pace, self._courtesy = Pace(rate), Pace(COURTESY)
        self._outage = outage
        self._crowded = crowded

    def room(self, now: float) -> float:
        """How many may start now."""
        allowed = self._pace.room(now)
        if self._crowded():
            allowed = min(allowed, self._courtesy.room(now))
        if self._outage is not None:
            allowed = min(allowed, self._outage.breaker.room(now))
        return allowed

    def wait(self, now: float) -> float:
        """Seconds until at least one may start."""
        wait = self._pace.wait(now)
        if self._crowded():
            wait = max(wait, self._courtesy.wait(now))
        if self._outage is not None:
            wait = max(wait, self._outage.breaker.rest(now))
        return wait

    def took(self, count: int, now: float) -> None:
        """So many were claimed."""
        self._pace = self._pace.took(count, now)
        if self._crowded():
            self._courtesy = self._courtesy.took(count, now)
