"""Lane: the slots of one target, and the loop that fills them."""

from __future__ import annotations

import logging
import time

import anyio

from oncebox.drain.attempt import Attempt
from oncebox.drain.backlog import Backlog
from oncebox.drain.outage import Outage
from oncebox.drain.pace import Pace
from oncebox.drain.shared import LONGEST_REST, Rest, Shared
from oncebox.drain.signal import Bell
from oncebox.drain.target import Target
from oncebox.model import Claimed

log = logging.getLogger("oncebox.drain")


class Lane:
    """A target with up to `concurrency` attempts in flight."""

    def __init__(self, target: Target, shared: Shared) -> None:
        self.target = target
        self.bell = Bell()
        # What is due already when the process starts is a backlog.
        self.backlog = Backlog(since=shared.now())
        # What runs in this process cannot be down.
        self.outage = None if target.in_process else Outage(target.name, target.retry)
        self._shared = shared
        self._busy = 0
        self._stuck = 0
        self.asleep = False
        self._pace = Pace(target.rate)

    @property
    def resting(self) -> bool:
        """Nothing runs, nothing is due, and nobody has rung."""
        return self.asleep and not self.bell.rung and self._busy == 0

    @property
    def stuck(self) -> bool:
        """Every slot is held by an attempt that goes on after its time."""
        return self._stuck >= self.target.concurrency

    @property
    def down(self) -> bool:
        """The target is thought to be down; only probes go out."""
        return self.outage is not None and self.outage.breaker.open

    async def turn(self) -> Rest | None:
        """Fill the free slots; without room, rest until a slot is free or the rate allows more."""
        self.bell.quiet()
        looked_at = self._shared.now()
        await self._come_back()
        room, took = await self._fill()
        if self._shared.stopping or (room and took == room):
            return None
        return await self._shared.rest([self.target.name], looked_at, took=took > 0) if room else self._full()

    def begin(self, claimed: Claimed) -> Attempt:
        """Start one attempt; it takes a slot, whether one is free or not."""
        shared = self._shared
        judge = None if self.outage is None else self.outage.judge(claimed)
        attempt = Attempt(self.target, claimed, shared.ledger, shared.now, shared.jitter, self._on_stuck, judge)
        self._busy += 1
        if self.target.in_process:
            shared.gate.join()
        shared.attempts.add(attempt)
        assert shared.group is not None
        shared.group.start_soon(self._follow, attempt)
        return attempt

    async def _come_back(self) -> None:
        """After an outage, what failed meanwhile is due again in its old place, and all of it is a backlog."""
        if self.outage is None or not self.outage.over:
            return
        await self._shared.store.hasten(self.target.name, self.outage.failed())
        self.outage.end()
        self.backlog = Backlog(since=self._shared.now())

    def _room(self) -> int:
        now = time.monotonic()
        allowed = self._pace.room(now)
        if self.outage is not None:
            allowed = min(allowed, self.outage.breaker.room(now))
        return int(max(0, min(self.target.concurrency - self._busy, allowed)))

    def _full(self) -> Rest:
        """Without room: until a slot is free, which rings, or until the rate or the breaker allows more."""
        if self._busy >= self.target.concurrency:
            return Rest(LONGEST_REST)
        now = time.monotonic()
        wait = self._pace.wait(now)
        if self.outage is not None:
            wait = max(wait, self.outage.breaker.rest(now))
        return Rest(min(max(0.001, wait), LONGEST_REST))

    async def _fill(self) -> tuple[int, int]:
        """Claim and start as much as there is room for; the room there was, and what was started."""
        if self._room() == 0:
            return 0, 0
        if self.target.in_process:
            await self._shared.gate.enter()
        room, took = self._room(), 0
        try:
            # What has been claimed must be started or given back, even if this task is cancelled meanwhile.
            with anyio.CancelScope(shield=True):
                kept = self.backlog.kept(room)
                took = await self._claim(kept, self.backlog.since) if kept else 0
                if took < room:
                    took += await self._claim(room - took)
        finally:
            if self.target.in_process:
                self._shared.gate.leave()
        if room:
            self.backlog = self.backlog.after(room, took)
        return room, took

    async def _claim(self, room: int, since: int = 0) -> int:
        claimed = await self._shared.store.claim(self.target.name, room, self._shared.now(), since)
        if self._shared.stopping:
            await self._shared.ledger.release(claimed)
            return 0
        self._pace = self._pace.took(len(claimed), time.monotonic())
        for one in claimed:
            self.begin(one)
        return len(claimed)

    async def _follow(self, attempt: Attempt) -> None:
        try:
            await attempt.run()
        except Exception:
            log.exception("attempt lost target=%s seq=%d", self.target.name, attempt.claimed.event.seq)
        finally:
            self._busy -= 1
            if attempt.stuck:
                self._stuck -= 1
            elif self.target.in_process:
                self._shared.gate.leave()
            self._shared.attempts.discard(attempt)
            self.bell.ring()
            self._shared.pulse.beat()

    def _on_stuck(self) -> None:
        """It may go on for ever, so nobody who wants to be alone waits for it."""
        self._stuck += 1
        if self.target.in_process:
            self._shared.gate.leave()
        self._shared.pulse.beat()
