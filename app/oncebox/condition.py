"""Condition: how a target fares in this process, as far as it is not simply ready."""

from __future__ import annotations

import msgspec

READY, DOWN, UNREACHABLE, STUCK = "ready", "down", "unreachable", "stuck"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Times are unix microseconds. `down_since`: nothing but probes goes out since then, the next one at
    `next_probe_at` (None: one is under way). `outcome`, `error` and `failed_at` are of the last attempt, if it failed.
    """

    stuck: bool = False
    down_since: int | None = None
    next_probe_at: int | None = None
    failed_at: int | None = None
    outcome: str | None = None
    error: str | None = None

    @property
    def state(self) -> str:
        """In one word: stuck, down, unreachable, or ready."""
        if self.stuck:
            return STUCK
        if self.down_since is not None:
            return DOWN
        return UNREACHABLE if self.outcome == UNREACHABLE else READY
