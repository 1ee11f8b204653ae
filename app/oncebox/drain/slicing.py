"""Slicing: the loop that has the store run transactional handlers, slice by slice."""

from __future__ import annotations

import asyncio
import logging

from oncebox.drain.ledger import report
from oncebox.drain.shared import Rest, Shared
from oncebox.drain.signal import Bell
from oncebox.drain.transactional import TransactionalRunner
from oncebox.model import Claimed
from oncebox.store import Slice

BREATH = 0.05
# Seconds between slices beside a crowd of accepts, which come first: what waits is on disk.
COURTESY = 0.005

log = logging.getLogger("oncebox.drain")


class Slicing:
    """All transactional targets together; the writer runs one handler at a time."""

    def __init__(self, runner: TransactionalRunner, shared: Shared) -> None:
        self.names = runner.names
        self.bell = Bell()
        self._runner = runner
        self._shared = shared
        self._to_pause: set[str] = set()
        self.asleep = False

    @property
    def resting(self) -> bool:
        """Nothing is due, and nobody has rung."""
        return not self.names or (self.asleep and not self.bell.rung)

    async def turn(self) -> Rest | None:
        """One slice; then the next, or a rest until something is due."""
        self.bell.quiet()
        await self._pause_overrunners()
        looked_at = self._shared.now()
        await self._shared.gate.enter()
        try:
            done = await self._shared.store.process(self.names, self._runner, self._shared.now)
        finally:
            self._shared.gate.leave()
        await self._look_at(done)
        if done.more:
            if done.settled and self._shared.store.crowded():
                await asyncio.sleep(COURTESY)
            return None if done.settled else Rest(BREATH)
        return await self._shared.rest(self.names, looked_at, self.bell, took=bool(done.settled))

    async def run_alone(self, suspect: Claimed) -> None:
        """Run one claimed suspect in a transaction of its own, however long the file refuses."""
        shared = self._shared
        done = await shared.ledger.insist(
            "process_alone", lambda: shared.store.process_alone(suspect, self._runner, shared.now)
        )
        await self._look_at(done)
        self.bell.ring()

    async def _look_at(self, done: Slice) -> None:
        for settled in done.settled:
            self._shared.recent.note(settled.seq)
            if settled.state != "done":
                report(settled)
        await self._pause_overrunners()

    async def _pause_overrunners(self) -> None:
        self._to_pause.update(self._runner.to_pause())
        for name in sorted(self._to_pause):
            await self._shared.store.pause(name, self._runner.why_paused(), self._shared.now())
            self._to_pause.discard(name)
            log.error("target paused alert=paused target=%s reason=overruns; it is resumed by hand", name)
