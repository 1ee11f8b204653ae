"""Breaker: is this target down? Pure."""

from __future__ import annotations

import math

import msgspec

# So many failures in a row, of so many different events, are the target's fault and not the events'.
IN_A_ROW = 10
DIFFERENT = 3
LONGEST_COOL_DOWN = 300.0
SHORTEST_COOL_DOWN = 0.001

NOBODY: frozenset[int] = frozenset()


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a target, in monotonic seconds. While it is open, one probe at a time goes out.

    `first` and `longest` are the cool-downs; `wait` is the present one, 0 while closed. `probe` is in flight now.
    """

    first: float = 5.0
    longest: float = LONGEST_COOL_DOWN
    failures: int = 0
    events: frozenset[int] = NOBODY
    wait: float = 0.0
    until: float = 0.0
    probe: int | None = None

    @property
    def open(self) -> bool:
        """The target is thought to be down."""
        return self.wait > 0

    def room(self, now: float) -> float:
        """How many deliveries may start now."""
        if not self.open:
            return math.inf
        return 1.0 if self.probe is None and now >= self.until else 0.0

    def rest(self, now: float) -> float:
        """Seconds until a delivery may start; without end while a probe is in flight."""
        if not self.open:
            return 0.0
        return max(0.0, self.until - now) if self.probe is None else math.inf

    def started(self, seq: int) -> Breaker:
        """After a delivery has started."""
        return self._with(probe=seq) if self.open else self

    def withdrawn(self, seq: int) -> Breaker:
        """After a delivery was given back without an outcome."""
        return self._with(probe=None) if seq == self.probe else self

    def ended(self, seq: int, now: float, *, down: bool, after: float = 0.0) -> Breaker:
        """After a delivery has ended. `down`: as it ends where a target is down, which wants to be left alone for
        `after` seconds. Any other end shows that the target works."""
        if not down:
            return Breaker(first=self.first, longest=self.longest) if self.failures or self.open else self
        if not self.open:
            return self._failed(seq, now, after)
        if seq == self.probe:
            return self._cooling(min(self.wait * 2, self.longest), now, after)
        return self._with(until=max(self.until, now + after))

    def _failed(self, seq: int, now: float, after: float) -> Breaker:
        events = self.events if len(self.events) >= DIFFERENT else self.events | {seq}
        failures = self.failures + 1
        if failures >= IN_A_ROW and len(events) >= DIFFERENT:
            return self._cooling(self.first, now, after)
        return self._with(failures=failures, events=events)

    def _cooling(self, wait: float, now: float, after: float) -> Breaker:
        return self._with(wait=wait, until=now + max(wait, after), probe=None, failures=0, events=NOBODY)

    def _with(self, **changes: object) -> Breaker:
        return msgspec.structs.replace(self, **changes)


def breaker(base: float, ceiling: float) -> Breaker:
    """The breaker of a target that is retried so: its cool-down starts with the base and never exceeds the ceiling."""
    longest = max(SHORTEST_COOL_DOWN, min(ceiling, LONGEST_COOL_DOWN))
    return Breaker(first=min(max(base, SHORTEST_COOL_DOWN), longest), longest=longest)
