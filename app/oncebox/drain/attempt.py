"""Attempt: one try of one delivery, from its start until its outcome is written down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import anyio

from oncebox.deadline import within
from oncebox.drain.ledger import Ledger, report
from oncebox.drain.target import Target
from oncebox.drain.verdict import Verdict, of_error, of_timeout, settled
from oncebox.model import Claimed, Settled

# How long a handler may take to clean up after it was cancelled before its slot counts as stuck.
PATIENCE = 1.0

STAGED_FAILED = Verdict(outcome="error", error="staged: the writes of the handler failed", reason="staged")
CANCELLED = Verdict(outcome="error", error="the handler cancelled its own task", reason="CancelledError")

log = logging.getLogger("oncebox.drain")


class Attempt:
    """Holds its slot until the work has really ended; `on_stuck` is told when it goes on after its time was up, and
    `judge` has the last word on its verdict (None: given back). `on_ended` is told when only the writing is left, and
    `hand_over` takes that over."""

    def __init__(
        self,
        target: Target,
        claimed: Claimed,
        ledger: Ledger,
        now: Callable[[], int],
        jitter: Callable[[], float],
        on_stuck: Callable[[Attempt], None],
        judge: Callable[[Verdict | None], Verdict | None] | None = None,
        on_ended: Callable[[Attempt], None] | None = None,
        hand_over: Callable[[Attempt, Settled, str], None] | None = None,
    ) -> None:
        self.target = target
        self.claimed = claimed
        self.stuck = False
        self.ended = False
        self.handed_over = False
        self._begun = time.monotonic()
        self._ledger = ledger
        self._now = now
        self._jitter = jitter
        self._on_stuck = on_stuck
        self._judge = judge
        self._on_ended = on_ended
        self._hand_over = hand_over
        self._stopping = False
        self._scope = None if target.keeps_time else anyio.CancelScope(shield=True)
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Deliver, then have the outcome written. Ends early only by `abandon`."""
        if self._scope is None:
            self._task = asyncio.current_task()
            await self._run()
            return
        with self._scope:
            await self._run()

    async def _run(self) -> None:
        started_at = self._now()
        verdict = await (self._uncut() if self.target.keeps_time else self._verdict())
        duration = round(self.took * 1_000_000)
        if self._judge is not None:
            verdict = self._judge(verdict)
        if self._on_ended is not None:
            self.ended = True
            self._on_ended(self)
        if verdict is None:
            await self._ledger.release([self.claimed])
        elif self._hand_over is not None and verdict.staged is None:
            outcome = self._settled(verdict, started_at, duration)
            self.handed_over = True
            self.claimed = self.claimed.light()  # its outcome may have to wait for the disk
            self._hand_over(self, outcome, verdict.reason)
        else:
            await self._settle(verdict, started_at, duration)

    @property
    def took(self) -> float:
        """Seconds since it has got its slot."""
        return time.monotonic() - self._begun

    @property
    def working(self) -> bool:
        """The work has not ended yet; what remains otherwise is to write its outcome."""
        return not self.ended and (self._task is None or not self._task.done())

    def stop(self) -> None:
        """The process stops: cancel the work. If that ends it, the attempt does not count."""
        self._stopping = True
        if self._task is not None and not self.ended:
            self._task.cancel()

    def abandon(self) -> None:
        """Wait no longer, whatever the work does."""
        if self._scope is not None:
            self._scope.cancel()
        elif self._task is not None:
            self._task.cancel()

    async def _verdict(self) -> Verdict | None:
        """How it ended; None if the stop ended it."""
        if self._is_stopping():
            return None
        # A plain task: an anyio scope cancels again at every await, so that a handler which ignores it would spin.
        self._task = task = asyncio.create_task(
            self._target_work(), name=f"{self.target.name}:{self.claimed.event.seq}"
        )
        try:
            in_time = await within(task, self.target.timeout)
            if not in_time:
                await self._overrun(task)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not in_time:
            return of_timeout(self.target.timeout)
        if task.cancelled():
            return None if self._is_stopping() else CANCELLED
        return task.result()

    async def _uncut(self) -> Verdict | None:
        """Of a target that ends in time by itself."""
        if self._is_stopping():
            return None
        try:
            return await self.target.deliver(self.claimed)
        except asyncio.CancelledError:
            if not self._is_stopping():
                raise
            return None
        except Exception as error:  # noqa: BLE001  # a target's own fault must not end the drain
            return of_error(error)

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _target_work(self) -> Verdict:
        try:
            return await self.target.deliver(self.claimed)
        except Exception as error:  # noqa: BLE001  # a target's own fault must not end the drain
            return of_error(error)

    async def _overrun(self, task: asyncio.Task[Verdict]) -> None:
        if self.target.stoppable:
            task.cancel()
            await asyncio.wait({task}, timeout=PATIENCE)
        if not task.done():
            self.stuck = True
            self._on_stuck(self)
            await asyncio.wait({task})

    async def _settle(self, verdict: Verdict, started_at: int, duration: int) -> None:
        outcome = self._settled(verdict, started_at, duration)
        otherwise = None if verdict.staged is None else self._settled(STAGED_FAILED, started_at, duration)
        current = await self._ledger.settle(outcome, verdict.staged, otherwise)
        report_end(outcome, verdict.reason, current=current)

    def _settled(self, verdict: Verdict, started_at: int, duration: int) -> Settled:
        return settled(
            self.claimed,
            verdict,
            self.target.retry,
            started_at=started_at,
            duration=duration,
            now=self._now(),
            jitter=self._jitter(),
        )


def report_end(outcome: Settled, reason: str, *, current: bool) -> None:
    """One line for an end that has been written down, or that came too late for that."""
    if current:
        report(outcome, reason)
    else:
        log.info("late result dropped target=%s seq=%d", outcome.target, outcome.seq)
