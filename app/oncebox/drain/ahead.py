"""Ahead: how much of what a quick target will end within a moment is claimed in advance. Pure."""

from __future__ import annotations

import msgspec

# A target that ends so many a second is quick: claims, each of which waits for a commit, would not keep up with it.
QUICK = 400.0
# Seconds of its work that are claimed in advance, up to so many. New events wait behind them, so it is a moment.
MOMENT = 0.04
MOST = 256
# Attempts that begin together end together: over less than this, or some rounds of its slots, a slow one looks quick.
SPAN = 0.05
ROUNDS = 4


class Ahead(msgspec.Struct, frozen=True):
    """How many to claim in advance, and what ended since a moment (monotonic seconds)."""

    count: int = 0
    ended: int = 0
    since: float = 0.0

    def overdone(self, waiting: int, slots: int) -> bool:
        """The target is not quick any more: so many that wait would keep what is new waiting for many rounds."""
        return self.count == 0 and waiting > ROUNDS * slots

    def after(self, ended: int, now: float, slots: int) -> Ahead:
        """At a look, when so many have ended in all since the start."""
        span, lately = now - self.since, ended - self.ended
        if span < SPAN and lately < ROUNDS * slots:
            return self
        rate = lately / max(span, 0.001)
        return Ahead(min(int(rate * MOMENT), MOST) if rate >= QUICK else 0, ended, now)
