"""Feeder: queues what reruns mean, a few hundred deliveries at a time, at each one's rate and not far ahead of the
drain."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import anyio

from oncebox.clock import wall_clock
from oncebox.seldom import Seldom, kind_of
from oncebox.store.choice import Piece, piece
from oncebox.store.reruns import Rerun, crowded, feed, open_reruns
from oncebox.store.sqlite import SQLiteStore

STEP = 500
# What fails waits for its next try and is not in the way: so much of that is enough, until a part of it has ended.
MOST_OPEN = 10_000
# A rate is kept in steps of about a fifth of a second.
STEPS_A_SECOND = 5
SOON, LATER = 0.02, 1.0
IDLE = 60.0

log = logging.getLogger("oncebox.operate")


class Feeder:
    """One loop over all open reruns; where each has got to is in the file, so a restart goes on there."""

    def __init__(self, store: SQLiteStore, now: Callable[[], int] = wall_clock) -> None:
        self._store = store
        self._now = now
        self._faults = Seldom(log)
        self._bell = anyio.Event()
        self._due: dict[int, float] = {}
        self._patience: dict[int, float] = {}
        self._found: dict[int, tuple[int, Piece]] = {}

    def ring(self) -> None:
        """There is a new rerun, or one was cancelled."""
        self._bell.set()

    async def run(self) -> None:
        """Feed until cancelled. A failure is logged, and tried again in a second."""
        while True:
            self._bell = anyio.Event()
            try:
                rest = await self.turn()
            except Exception as error:  # noqa: BLE001  # it is told, though not each time, and tried again
                self._faults.say(time.monotonic(), kind_of(error), "reruns stand still; they go on in a second", error)
                rest = LATER
            with anyio.move_on_after(rest):
                await self._bell.wait()

    async def turn(self) -> float:
        """One step of each rerun that is due; how long nothing else is."""
        reruns = await self._store.read(open_reruns)
        known = {rerun.id for rerun in reruns}
        for memory in (self._due, self._patience, self._found):
            for gone in memory.keys() - known:
                del memory[gone]
        for rerun in reruns:
            if self._due.get(rerun.id, 0.0) <= time.monotonic():
                self._due[rerun.id] = time.monotonic() + await self._step(rerun)
        if not reruns:
            return IDLE
        return max(0.0, min(self._due.values()) - time.monotonic())

    async def _step(self, rerun: Rerun) -> float:
        """Queue some more of one; seconds until its next step."""
        if rerun.queued - rerun.done - rerun.dead >= MOST_OPEN:
            return LATER
        size = step_size(rerun.rate)
        found = await self._find(rerun, size)
        targets = {one.target for one in found.picked}
        if await self._store.read(lambda db: crowded(db, targets, self._now(), STEP)):
            wait = self._patience[rerun.id] = min(LATER, 2 * self._patience.get(rerun.id, SOON / 2))
            return wait
        self._patience.pop(rerun.id, None)
        self._found.pop(rerun.id, None)
        now, skipping = self._now(), self._store.routing.skipping
        woken = await self._store.change(lambda db, books: feed(db, rerun, found, now, books, skipping))
        self._store.writer.tell(woken)
        return len(found.picked) / rerun.rate if rerun.rate else 0.0

    async def _find(self, rerun: Rerun, size: int) -> Piece:
        """The next piece; one that had to wait is not looked for again."""
        position, found = self._found.get(rerun.id, (-1, None))
        if found is None or position != rerun.position:
            routing = self._store.routing
            choice, after, upto = rerun.choice, rerun.position, rerun.upto
            found = await self._store.read(lambda db: piece(db, choice, after, upto, size, routing))
            self._found[rerun.id] = (rerun.position, found)
        return found


def step_size(rate: float | None) -> int:
    """How many events a step looks at; rate is deliveries a second, None: as fast as they are processed."""
    return STEP if rate is None else max(1, min(STEP, int(rate / STEPS_A_SECOND)))
