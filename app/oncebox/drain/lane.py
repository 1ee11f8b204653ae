"""Lane: the slots of one target, and the loop that fills them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import anyio

from oncebox.condition import Condition
from oncebox.drain.attempt import Attempt, report_end
from oncebox.drain.backlog import Backlog
from oncebox.drain.outage import Outage
from oncebox.drain.outcomes import End, Outcomes
from oncebox.drain.pace import Pace
from oncebox.drain.shared import LONGEST_REST, Rest, Shared
from oncebox.drain.signal import Bell
from oncebox.drain.standing import Standing
from oncebox.drain.target import Target
from oncebox.model import Claimed, Settled

# How many outcomes may wait to be written while more is started.
UNWRITTEN = 256
# What a quick target (so many a second) ends within a moment (seconds: some commits) is claimed in advance, up to so
# many; more is claimed while three quarters of it are left. New events wait behind it, so the moment is short. If the
# target turns slow meanwhile, what waits so long is given back: it neither blocks others nor looks as if it ran.
QUICK = 400.0
AHEAD = 0.04
MOST_AHEAD = 256
STALE = 0.25
# So many a second beside a crowd of accepts, which come first: what waits is on disk.
COURTESY = 800.0

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
        self._outcomes = Outcomes(shared.ledger, self._on_written)
        self._unwritten = 0
        self._busy = 0
        self._stuck = 0
        self._standing = Standing()
        self.asleep = False
        self._pace, self._courtesy = Pace(target.rate), Pace(COURTESY)

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

    def condition(self) -> Condition:
        """How the target fares now."""
        if self.outage is None:
            return Condition(stuck=self.stuck)
        rest = self.outage.breaker.rest(time.monotonic())
        return self._standing.condition(self._shared.now(), rest, stuck=self.stuck, down=self.down)

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
        attempt = self._attempt(claimed)
        if self.target.in_process:
            self._shared.gate.join()
        if self.target.keeps_time:
            # A plain task, which costs a third: who keeps time needs no scope, and the stop waits for each attempt.
            task = asyncio.create_task(self._work(attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return attempt
        assert self._shared.group is not None
        self._shared.group.start_soon(self._follow, attempt)
        return attempt

    async def give_back(self) -> None:
        """What was claimed and has not started is claimed again later."""
        ready, self._ready, self._ahead = list(self._ready), deque(), 0
        await self._shared.ledger.release(ready)

    def _attempt(self, claimed: Claimed) -> Attempt:
        shared = self._shared
        more: tuple[Any, ...] = ()
        if self.outage is not None:
            more = (self.outage.judge(claimed), self._on_ended, self._hand_over)
        attempt = Attempt(self.target, claimed, shared.ledger, shared.now, shared.jitter, self._on_stuck, *more)
        self._busy += 1
        shared.attempts.add(attempt)
        shared.recent.note(claimed.event.seq)
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
        if self._shared.store.crowded():
            allowed = min(allowed, self._courtesy.room(now))
        if self.outage is not None:
            allowed = min(allowed, self.outage.breaker.room(now))
        free = self.target.concurrency + self._ahead - self._busy - len(self._ready)
        if self._unwritten > UNWRITTEN + self.target.concurrency or self._has_enough():
            return 0
        return int(max(0, min(free, allowed)))

    def _has_enough(self) -> bool:
        return len(self._ready) > self._ahead * 3 // 4

    def _full(self) -> Rest:
        """Without room: until a slot is free, which rings, or until the rate or the breaker allows more."""
        if self._ready:
            return Rest(STALE)
        if self._busy >= self.target.concurrency:
            return Rest(LONGEST_REST)
        now = time.monotonic()
        wait = self._pace.wait(now)
        if self._shared.store.crowded():
            wait = max(wait, self._courtesy.wait(now))
        if self.outage is not None:
            wait = max(wait, self.outage.breaker.rest(now))
        return Rest(min(max(0.001, wait), LONGEST_REST))

    async def _fill(self) -> tuple[int, int]:
        """Claim and start as much as there is room for; the room there was, and what was started (all of the room, if
        there may be more)."""
        if self._room() == 0:
            return 0, 0
        if self.target.in_process:
            await self._shared.gate.enter()
        room, took = self._room(), 0
        try:
            # What has been claimed must be started or given back, even if this task is cancelled meanwhile.
            with anyio.CancelScope(shield=True):
                took = await self._claim(room) if room else 0
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
            rate = self._ended / max(now - self._since, 0.001)
            self._ahead = min(int(rate * AHEAD), MOST_AHEAD) if rate >= QUICK else 0
        self._ended, self._since = 0, now

    async def _claim(self, room: int) -> int:
        """The oldest, and the share that is kept for new ones; what is asked for together is claimed in one commit."""
        kept = self.backlog.kept(room)
        old = room - kept
        if not kept:
            return await self._take(old)
        fresh = await self._both(kept, old) if old else await self._take(kept, self.backlog.since)
        if old:
            return fresh
        return fresh if fresh == kept else fresh + await self._take(kept - fresh)

    async def _both(self, kept: int, old: int) -> int:
        """Both in one commit; what one of them got is started, even if the other fails."""
        took = await asyncio.gather(self._take(kept, self.backlog.since), self._take(old), return_exceptions=True)
        failed = next((one for one in took if isinstance(one, BaseException)), None)
        if failed is not None:
            raise failed
        fresh, older = (one for one in took if isinstance(one, int))
        return kept + old if older == old else fresh + older

    async def _take(self, count: int, since: int = 0) -> int:
        claimed = await self._shared.store.claim(self.target.name, count, self._shared.now(), since)
        if self._shared.stopping:
            await self._shared.ledger.release(claimed)
            return 0
        self._pace = self._pace.took(len(claimed), time.monotonic())
        if self._shared.store.crowded():
            self._courtesy = self._courtesy.took(len(claimed), time.monotonic())
        self._ready += claimed
        self._start_ready()
        return len(claimed)

    def _start_ready(self) -> None:
        while self._may_start():
            self.begin(self._ready.popleft())

    def _may_start(self) -> bool:
        if not self._ready or self._shared.stopping or self._busy >= self.target.concurrency:
            return False
        return self.outage is None or self.outage.breaker.room(time.monotonic()) > 0

    async def _work(self, attempt: Attempt) -> None:
        """One slot: this attempt, then one after the other for as long as something is ready."""
        await self._follow(attempt)
        while self._may_start():
            await self._follow(self._attempt(self._ready.popleft()))

    async def _follow(self, attempt: Attempt) -> None:
        try:
            await attempt.run()
        except Exception:
            log.exception("attempt lost target=%s seq=%d", self.target.name, attempt.claimed.event.seq)
        finally:
            if not attempt.handed_over:
                self._leave(attempt)

    def _leave(self, attempt: Attempt) -> None:
        if attempt.ended:
            self._unwritten -= 1
        else:
            self._busy -= 1
        if attempt.stuck:
            self._stuck -= 1
        elif self.target.in_process:
            self._shared.gate.leave()
        self._shared.recent.note(attempt.claimed.event.seq)
        self._shared.attempts.discard(attempt)
        self._start_ready()
        self._ring()
        self._shared.pulse.beat()

    def _on_ended(self) -> None:
        """The slot is free for the next one while the outcome of this one is being written."""
        self._busy -= 1
        self._unwritten += 1
        self._ended += 1
        self._ring()

    def _hand_over(self, attempt: Attempt, settled: Settled, reason: str) -> None:
        assert self._shared.group is not None
        self._standing.ended(settled, down=self.down)
        self._outcomes.add(End(attempt, settled, reason), self._shared.group)

    def _on_written(self, ends: Sequence[End], current: Sequence[bool]) -> None:
        shared = self._shared
        self._unwritten -= len(ends)
        for end, applied in zip(ends, current, strict=True):
            report_end(end.settled, end.reason, current=applied)
            shared.recent.note(end.settled.seq)
            shared.attempts.discard(end.attempt)
        self._start_ready()
        self._ring()
        shared.pulse.beat()

    def _ring(self) -> None:
        if not self._has_enough() or self.down:
            self.bell.ring()

    def _on_stuck(self) -> None:
        """It may go on for ever, so nobody who wants to be alone waits for it."""
        self._stuck += 1
        if self.target.in_process:
            self._shared.gate.leave()
        self._shared.pulse.beat()
