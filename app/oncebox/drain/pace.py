"""Pace: how many deliveries a rate allows now. Pure."""

from __future__ import annotations

import math

import msgspec

# What may go out at once after a rest, in seconds of the rate.
BURST = 0.1


class Pace(msgspec.Struct, frozen=True):
    """A rate a second and what is left of it at a moment (monotonic seconds). Without a rate everything is allowed."""

    rate: float | None
    left: float = 1.0
    at: float = 0.0

    def room(self, now: float) -> float:
        """How many whole deliveries may start now."""
        return math.inf if self.rate is None else float(math.floor(self._filled(now) + 1e-9))

    def took(self, count: int, now: float) -> Pace:
        """After so many have started."""
        return self if self.rate is None else Pace(self.rate, self._filled(now) - count, now)

    def wait(self, now: float) -> float:
        """Seconds until at least one may start."""
        return 0.0 if self.rate is None else max(0.0, (1.0 - self._filled(now)) / self.rate)

    def _filled(self, now: float) -> float:
        rate = self.rate or 0.0
        return min(max(1.0, rate * BURST), self.left + max(0.0, now - self.at) * rate)
