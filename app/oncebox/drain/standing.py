"""Standing: how the other side of a target has fared lately."""

from __future__ import annotations

import math

from oncebox.condition import Condition
from oncebox.model import MICROSECONDS, Settled


class Standing:
    """Remembers since when a target is down, and its last attempt, if that failed. Times are unix microseconds."""

    def __init__(self) -> None:
        self._down_since: int | None = None
        self._failed: Settled | None = None

    def ended(self, settled: Settled, *, down: bool) -> None:
        """An attempt has ended; is the target thought to be down now?"""
        self._failed = None if settled.outcome == "ok" else settled
        if not down:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = settled.now

    def condition(self, now: int, rest: float, *, stuck: bool, down: bool) -> Condition:
        """What is known now; the next probe goes out in `rest` seconds (without end while one is under way)."""
        failed = self._failed
        return Condition(
            stuck=stuck,
            down_since=self._down_since if down else None,
            next_probe_at=now + round(rest * MICROSECONDS) if down and rest < math.inf else None,
            failed_at=None if failed is None else failed.started_at,
            outcome=None if failed is None else failed.outcome,
            error=None if failed is None else failed.error,
        )
