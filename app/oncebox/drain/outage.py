"""Outage: the breaker of one target at work, and the deliveries that failed while it was open."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

import msgspec

from oncebox.drain.breaker import breaker
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.verdict import Verdict
from oncebox.model import Claimed

# What failed beyond that keeps its wait; remembering it all would cost memory by the length of an outage.
REMEMBERED = 10_000

log = logging.getLogger("oncebox.drain")

Judge = Callable[[Verdict | None], Verdict | None]


class Outage:
    """Follows the attempts of one target. `over`: the target has come back, and nobody has acted on it yet."""

    def __init__(self, name: str, policy: RetryPolicy) -> None:
        self.breaker = breaker(policy.base, policy.ceiling)
        self.over = False
        self._name = name
        self._failed: set[int] = set()
        self._returning: set[int] = set()
        self._through = 0

    def recall(self, seqs: Collection[int]) -> None:
        """These are to be hurried up: they could not be reached when the process ended, and the target may have come
        back meanwhile; or their hurrying has failed."""
        self._returning.update(seqs)
        self.over = bool(self._returning)

    def judge(self, claimed: Claimed) -> Judge:
        """Take note of a delivery that starts; what is returned takes its verdict (None: given back) and says what
        it comes to: while the target is down nothing counts."""
        seq = claimed.event.seq
        self.breaker = self.breaker.started(seq)
        probe = self.breaker.probe == seq
        through = self._through

        def ended(verdict: Verdict | None) -> Verdict | None:
            if verdict is None:
                self.breaker = self.breaker.withdrawn(seq)
                return None
            return self._ended(seq, verdict, probe=probe, through=through)

        return ended

    def returning(self, unwritten: Collection[int]) -> list[int]:
        """What failed meanwhile and is to be hurried up, oldest first: all of which the file knows that it failed."""
        return sorted(self._returning.difference(unwritten))

    def hurried(self, seqs: Collection[int]) -> None:
        """These become due again. It is over until that can be said of all."""
        self._returning.difference_update(seqs)
        self.over = bool(self._returning)

    def _ended(self, seq: int, verdict: Verdict, *, probe: bool, through: int) -> Verdict:
        # How it ended before says nothing any more.
        self._failed.discard(seq)
        self._returning.discard(seq)
        before, now = self.breaker, time.monotonic()
        self.breaker = after = before.ended(seq, now, down=verdict.down, after=verdict.after or 0.0)
        self._report(verdict, after.until - now, was_open=before.open, is_open=after.open)
        if not verdict.down:
            self._back(was_open=before.open)
            return verdict
        spared = before.open or probe
        if (spared or verdict.outcome == "unreachable") and verdict.after is None:
            self._remember(seq, beside=through != self._through)
        if not spared:
            return verdict
        # The next probe is another delivery, if there is one: this one is due again just when that goes out.
        wait = max(verdict.after or 0.0, after.until - now, 0.0)
        return msgspec.structs.replace(verdict, counts=False, after=wait)

    def _remember(self, seq: int, *, beside: bool) -> None:
        """`beside`: another came through meanwhile, so there is no return to wait for."""
        if beside:
            self._returning.add(seq)
            self.over = True
        elif len(self._failed) < REMEMBERED:
            self._failed.add(seq)

    def _back(self, *, was_open: bool) -> None:
        self._through += 1
        if was_open or self._failed:
            self.over = True
            self._returning |= self._failed
            self._failed.clear()

    def _report(self, verdict: Verdict, wait: float, *, was_open: bool, is_open: bool) -> None:
        if is_open and not was_open:
            log.warning(
                "target is down target=%s reason=%s; one probe at a time, the next in %.1f s",
                self._name,
                verdict.reason or verdict.outcome,
                wait,
            )
        elif was_open and not is_open:
            log.warning("target is back target=%s", self._name)
