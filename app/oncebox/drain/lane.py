"""Lane: the slots of one target, and the loop that fills them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Any

import anyio

from oncebox.drain.attempt import Attempt
from oncebox.drain.backlog import Backlog
from oncebox.drain.outage import Outage
from oncebox.drain.outcomes import Outcomes
from oncebox.drain.pace import Pace
from oncebox.drain.shared import LONGEST_REST, Rest, Shared
from oncebox.drain.signal import Bell
from oncebox.drain.target import Target
from oncebox.model import Claimed, Settled

# How many outcomes may wait to be written while more is started.
UNWRITTEN = 256
# What a quick target ends within a moment (seconds) is claimed in advance, up to so many. If it turns slow meanwhile,
# what waits so long is given back, so that it neither blocks other sources nor looks as if it ran.
AHEAD = 0.02
MOST_AHEAD = 128
STALE = 0.25

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
        # Claimed and not started: only for targets that end faster than claims are written.
        self._ready: deque[Claimed] = deque()
        self._ahead = 0
        self._ended = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._since = 0.0
        self._outcomes = Outcomes(shared.ledger)
        self._unwritten = 0
        self._busy = 0
        self._stuck = 0
        self.asleep = False
        self._pace = Pace(target.rate)

    @property
    def resting(self) -> bool:
        """Nothing runs, nothing is due, and nobody has rung."""
        return self.asleep and not self.bell.rung and not (self._busy or self._ready or self._unwritten)

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
        if self._ready and (self.down or time.monotonic() - self._since > STALE):
            await self.give_back()
        await self._come_back()
        room, took = await self._fill()
        if self._shared.stopping or (room and took == room):
            return None
        return await self._shared.rest([self.target.name], looked_at, took=took > 0) if room else self._full()

    def begin(self, claimed: Claimed) -> Attempt:
        """Start one attempt; it takes a slot, whether one is free or not."""
        shared = self._shared
        more: tuple[Any, ...] = ()
        if self.outage is not None:
            more = (self.outage.judge(claimed), self._on_ended, self._write)
        attempt = Attempt(self.target, claimed, shared.ledger, shared.now, shared.jitter, self._on_stuck, *more)
        self._busy += 1
        if self.target.in_process:
            shared.gate.join()
        shared.attempts.add(attempt)
        if self.target.keeps_time:
            # A plain task, which costs a third: who keeps time needs no scope, and the stop waits for each attempt.
            task = asyncio.create_task(self._follow(attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return attempt
        assert shared.group is not None
        shared.group.start_soon(self._follow, attempt)
        return attempt

    async def give_back(self) -> None:
        """What was claimed and has not started is claimed again later."""
        ready, self._ready, self._ahead = list(self._ready), deque(), 0
        await self._shared.ledger.release(ready)

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
        free = self.target.concurrency + self._ahead - self._busy - len(self._ready)
        if self._unwritten > UNWRITTEN + self.target.concurrency or len(self._ready) > self._ahead // 2:
            return 0
        return int(max(0, min(free, allowed)))

    def _full(self) -> Rest:
        """Without room: until a slot is free, which rings, or until the rate or the breaker allows more."""
        if self._ready:
            return Rest(STALE)
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
            self._look_ahead()
        return room, took

    def _look_ahead(self) -> None:
        """Claim in advance what ends within a moment; nothing where each is waited for."""
        now = time.monotonic()
        if self.outage is not None and self.target.rate is None:
            self._ahead = min(int(self._ended / max(now - self._since, 0.001) * AHEAD), MOST_AHEAD)
        self._ended, self._since = 0, now

    async def _claim(self, room: int, since: int = 0) -> int:
        claimed = await self._shared.store.claim(self.target.name, room, self._shared.now(), since)
        if self._shared.stopping:
            await self._shared.ledger.release(claimed)
            return 0
        self._pace = self._pace.took(len(claimed), time.monotonic())
        self._ready += claimed
        self._start_ready()
        return len(claimed)

    def _start_ready(self) -> None:
        while self._ready and not self._shared.stopping and self._busy < self.target.concurrency:
            if self.outage is not None and not self.outage.breaker.room(time.monotonic()):
                return
            self.begin(self._ready.popleft())

    async def _follow(self, attempt: Attempt) -> None:
        try:
            await attempt.run()
        except Exception:
            log.exception("attempt lost target=%s seq=%d", self.target.name, attempt.claimed.event.seq)
        finally:
            if attempt.ended:
                self._unwritten -= 1
            else:
                self._busy -= 1
            if attempt.stuck:
                self._stuck -= 1
            elif self.target.in_process:
                self._shared.gate.leave()
            self._shared.attempts.discard(attempt)
            self._start_ready()
            self._ring()
            self._shared.pulse.beat()

    def _on_ended(self) -> None:
        """The slot is free for the next one while the outcome of this one is being written."""
        self._busy -= 1
        self._unwritten += 1
        self._ended += 1
        self._start_ready()
        self._ring()

    async def _write(self, settled: Settled) -> bool:
        assert self._shared.group is not None
        return await self._outcomes.settle(settled, self._shared.group)

    def _ring(self) -> None:
        if len(self._ready) <= self._ahead // 2 or self.down:
            self.bell.ring()

    def _on_stuck(self) -> None:
        """It may go on for ever, so nobody who wants to be alone waits for it."""
        self._stuck += 1
        if self.target.in_process:
            self._shared.gate.leave()
        self._shared.pulse.beat()
