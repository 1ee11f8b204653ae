"""Lane: the loop that fills the slots of one target, and what an attempt does to them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import anyio

from oncebox.condition import Condition
from oncebox.drain.ahead import Ahead
from oncebox.drain.attempt import Attempt, report_end
from oncebox.drain.backlog import Backlog
from oncebox.drain.limits import Limits
from oncebox.drain.outage import Outage
from oncebox.drain.outcomes import End, Outcomes
from oncebox.drain.room import Room
from oncebox.drain.shared import LONGEST_REST, Rest, Shared
from oncebox.drain.signal import Bell, together
from oncebox.drain.slots import Slots
from oncebox.drain.standing import Standing
from oncebox.drain.target import Target
from oncebox.model import Claimed, Settled

# How many outcomes may wait to be written while more is started.
UNWRITTEN = 256
# Seconds after which the others are looked at although enough waits, because nothing of that can start; and after which
# it is given back: it neither blocks others nor looks as if it ran.
LULL = 0.01
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
        # What waits in it was claimed in advance: only for targets that end faster than claims are written.
        self._slots = Slots(target.concurrency, target.timeout, lambda: shared.reach.get(target.name))
        self._ahead = Ahead()
        self._ended = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes = Outcomes(shared.ledger, self._on_written)
        self._unwritten = 0
        self._standing = Standing()
        self.asleep = False
        self._limits = Limits(target.rate, self.outage, shared.store.crowded)

    @property
    def resting(self) -> bool:
        """Nothing runs, nothing is due, and nobody has rung."""
        return self.asleep and not self.bell.rung and not (self._slots.busy or self._slots.waiting or self._unwritten)

    @property
    def stuck(self) -> bool:
        """Every slot is held by an attempt that goes on after its time."""
        return self._slots.stuck >= self.target.concurrency

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
        await self._give_stale_back()
        await self._come_back()
        room, took, left = await self._fill()
        if self._shared.stopping or (room and took == room):
            return None
        if not room:
            return self._full()
        rest = await self._shared.rest([self.target.name], looked_at, self.bell, took=took > 0, share=left)
        return Rest(min(rest.seconds, self._patience()), quiet=rest.quiet)

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
        self._ahead = Ahead(ended=self._ended, since=time.monotonic())
        await self._shared.ledger.release(self._slots.clear())

    async def _give_stale_back(self) -> None:
        if not self._slots.waiting:
            return
        if self.down:
            await self.give_back()
        else:
            await self._shared.ledger.release(self._slots.clear_idle(time.monotonic(), STALE))

    def _attempt(self, claimed: Claimed) -> Attempt:
        shared = self._shared
        more: tuple[Any, ...] = ()
        if self.outage is not None:
            more = (self.outage.judge(claimed), self._on_ended, self._hand_over)
        attempt = Attempt(self.target, claimed, shared.ledger, shared.now, shared.jitter, self._on_stuck, *more)
        self._slots.hold(claimed)
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
        if self._unwritten > UNWRITTEN + self.target.concurrency:
            return 0
        now = time.monotonic()
        return int(max(0, min(self._wanted(now), self._limits.room(now))))

    def _wanted(self, now: float) -> int:
        """For the free slots and what is claimed in advance; if enough waits that cannot start, for the others."""
        free = self._slots.free
        if not self._has_enough():
            return free + self._ahead.count - self._slots.waiting
        return free if self._slots.stalled(now, LULL) else 0

    def _has_enough(self) -> bool:
        return self._slots.waiting > self._ahead.count * 3 // 4

    def _patience(self) -> float:
        """What waits and cannot start is looked at again soon."""
        if not self._slots.waiting:
            return LONGEST_REST
        return LULL if self._slots.free > 0 else STALE

    def _full(self) -> Rest:
        """Without room: until a slot is free, which rings, or until the rate or the breaker allows more."""
        if self._slots.waiting or self._slots.free <= 0:
            return Rest(self._patience())
        return Rest(min(max(0.001, self._limits.wait(time.monotonic())), LONGEST_REST))

    async def _fill(self) -> tuple[int, int, Room | None]:
        """Claim and start as much as there is room for; the room there was, what was started (all of the room, if
        there may be more), and what each source might still have had."""
        if self._room() == 0:
            return 0, 0, None
        if self.target.in_process:
            await self._shared.gate.enter()
        room, took = self._room(), 0
        left = self._slots.room(max(0, self._ahead.count - self._slots.waiting))
        try:
            # What has been claimed must be started or given back, even if this task is cancelled meanwhile.
            with anyio.CancelScope(shield=True):
                took, left = await self._claim(room, left) if room else (0, left)
        finally:
            if self.target.in_process:
                self._shared.gate.leave()
        if room:
            self.backlog = self.backlog.after(room, room if left.tight else took)
            self._look_ahead()
        return room, took, left

    def _look_ahead(self) -> None:
        """Claim in advance what ends within a moment; nothing where each is waited for."""
        if self.outage is not None and self.target.rate is None:
            self._ahead = self._ahead.after(self._ended, time.monotonic(), self.target.concurrency)

    async def _claim(self, room: int, share: Room) -> tuple[int, Room]:
        """The oldest, and the part that is kept for new ones."""
        kept = self.backlog.kept(room)
        if not kept:
            return await self._take(room, share)
        if self._ahead.count and kept < room:
            return await self._both(kept, room - kept, share)
        fresh, left = await self._take(kept, share, self.backlog.since)
        if fresh == kept == room:
            return fresh, left
        older, left = await self._take(room - fresh, left)
        return fresh + older, left

    async def _both(self, kept: int, old: int, share: Room) -> tuple[int, Room]:
        """Both in one commit, for quick targets: what is claimed too much waits a moment only."""
        since = self.backlog.since
        (fresh, _), (older, left) = await together(self._take(kept, share, since), self._take(old, share))
        return kept + old if older == old else fresh + older, left

    async def _take(self, count: int, share: Room, since: int = 0) -> tuple[int, Room]:
        claimed = await self._shared.store.claim(self.target.name, count, self._shared.now(), since, share)
        if self._shared.stopping:
            await self._shared.ledger.release(claimed)
            return 0, share
        self._limits.took(len(claimed), time.monotonic())
        self._slots.put(claimed)
        self._start_ready()
        return len(claimed), share.after(claimed)

    def _start_ready(self) -> None:
        while (claimed := self._next()) is not None:
            self.begin(claimed)

    def _next(self) -> Claimed | None:
        if self._shared.stopping or not self._slots.waiting:
            return None
        if self.outage is not None and self.outage.breaker.room(time.monotonic()) <= 0:
            return None
        return self._slots.next()

    async def _work(self, attempt: Attempt) -> None:
        """One slot: this attempt, then one after the other for as long as something is ready."""
        await self._follow(attempt)
        while (claimed := self._next()) is not None:
            await self._follow(self._attempt(claimed))

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
            self._slots.leave(attempt.claimed, attempt.took)
        if attempt.stuck:
            self._slots.stuck -= 1
        elif self.target.in_process:
            self._shared.gate.leave()
        self._shared.recent.note(attempt.claimed.event.seq)
        self._shared.attempts.discard(attempt)
        self._start_ready()
        self._ring()
        self._shared.pulse.beat()

    def _on_ended(self, attempt: Attempt) -> None:
        """The slot is free for the next one while the outcome of this one is being written."""
        self._slots.leave(attempt.claimed, attempt.took)
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
        self._slots.stuck += 1
        if self.target.in_process:
            self._shared.gate.leave()
        self._shared.pulse.beat()
