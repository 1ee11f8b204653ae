"""Suspects: deliveries that were running when a process died are run alone before anything else."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

import anyio

from oncebox.drain.lane import Lane
from oncebox.drain.shared import LONGEST_REST, Rest, Shared
from oncebox.drain.signal import Bell
from oncebox.drain.slicing import Slicing
from oncebox.model import Claimed

# Whoever is due without being a suspect must not stop everybody else again and again.
FRUITLESS_REST = 10.0

log = logging.getLogger("oncebox.drain")


class Suspects:
    """Holds the gate shut while one of them runs; only what a process can die of counts, which is Python."""

    def __init__(self, names: Sequence[str], lanes: Mapping[str, Lane], slicing: Slicing, shared: Shared) -> None:
        self._names = names
        self._lanes = lanes
        self._slicing = slicing
        self._shared = shared
        self._recovered = False
        self._not_before = 0.0
        self.asleep = False

    @property
    def bell(self) -> Bell:
        """Rings when something is due that only a suspect can be."""
        return self._shared.suspect_bell

    @property
    def resting(self) -> bool:
        """No suspect is known to be due."""
        return self.asleep and not self.bell.rung

    async def turn(self) -> Rest | None:
        """Run what is due of them, each alone; at the first turn, find out which there are."""
        shared = self._shared
        rung = self.bell.rung
        self.bell.quiet()
        if self._recovered and not (rung and time.monotonic() >= self._not_before):
            return Rest(LONGEST_REST, quiet=True)
        fruitless = self._recovered
        try:
            await shared.gate.close()
            await self._recover()
            while not shared.stopping and await self._run_next():
                fruitless = False
            self._not_before = time.monotonic() + FRUITLESS_REST if fruitless else 0.0
        finally:
            if self._recovered:
                shared.gate.reopen()
        return None

    async def _recover(self) -> None:
        if self._recovered:
            await self._shared.store.release_held(self._shared.now())
            return
        suspects = await self._shared.store.recover(self._names, self._shared.now())
        if suspects:
            log.warning("suspects found count=%d; each runs alone", suspects)
        for lane in self._lanes.values():
            lane.bell.ring()
        self._slicing.bell.ring()
        self._recovered = True

    async def _run_next(self) -> bool:
        claimed = None
        # What has been claimed must be run or given back, even if this task is cancelled meanwhile.
        with anyio.CancelScope(shield=True):
            claimed = await self._shared.store.claim_suspect(self._names, self._shared.now())
            if claimed is not None and (self._shared.stopping or self._shared.store.is_paused(claimed.target)):
                await self._shared.ledger.release([claimed])
                return True
        if claimed is None:
            return False
        await self._run_alone(claimed)
        return True

    async def _run_alone(self, claimed: Claimed) -> None:
        log.warning(
            "suspect runs alone target=%s seq=%d attempt=%d", claimed.target, claimed.event.seq, claimed.attempt
        )
        lane = self._lanes.get(claimed.target)
        if lane is None:
            await self._slicing.run_alone(claimed)
            return
        attempt = lane.begin(claimed)
        await self._shared.pulse.until(lambda: attempt.stuck or attempt not in self._shared.attempts)
