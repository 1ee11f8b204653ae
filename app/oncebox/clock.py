"""Clock: the wall clock in unix microseconds, small steps back smoothed, larger ones noticed."""

from __future__ import annotations

import time
from collections.abc import Callable

SMOOTHED = 1_000_000
NOTICED = 2_000_000


def wall_clock() -> int:
    """Unix microseconds, as the system says."""
    return time.time_ns() // 1000


class Clock:
    """Time as events are stamped with it: steps back of less than a second stand still, larger ones are told as they
    are, because order never depends on them."""

    def __init__(self, source: Callable[[], int] = wall_clock) -> None:
        self._source = source
        self._last = 0

    def __call__(self) -> int:
        now = self._source()
        if 0 < self._last - now < SMOOTHED:
            return self._last
        self._last = now
        return now


class Setbacks:
    """By how much the wall clock has been set back, against the one that only goes on."""

    def __init__(
        self, wall: Callable[[], int], steady: Callable[[], int] = lambda: time.monotonic_ns() // 1000
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead = wall() - steady()

    def since_last(self) -> int:
        """Since it was asked before, in microseconds; 0 for less than NOTICED."""
        before, self._ahead = self._ahead, self._wall() - self._steady()
        back = before - self._ahead
        return back if back >= NOTICED else 0
