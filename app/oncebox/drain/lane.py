"""Lane: the loop that fills the slots of one target, and what an attempt does to them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from oncebox.condition import Condition
from oncebox.drain.attempt import Attempt, report_end
from oncebox.drain.backlog import Backlog
from oncebox.drain.claiming import Claiming
from oncebox.drain.limits import Limits
from oncebox.drain.outage import REMEMBERED, Outage
from oncebox.drain.outcomes import End, Outcomes
from oncebox.drain.room import Room
from oncebox.drain.shared import LONGEST_REST, Rest, Shared
from oncebox.drain.signal import Bell
from oncebox.drain.slots import Slots
from oncebox.drain.standing import Standing
from oncebox.drain.target import Target
from oncebox.model import Claimed, Settled
from oncebox.seldom import Seldom, kind_of

# How many outcomes may wait to be written while more is started.
UNWRITTEN = 256

log = logging.getLogger("oncebox.drain")


class Lane:
    """A target with up to `concurrency` attempts in flight."""

    def __init__(self, target: Target, shared: Shared) -> None:
        self.target = target
        self.bell = Bell()
        # What runs in this process cannot be down.
        self.outage = None if target.in_process else Outage(target.name, target.retry)
        self._new = True
        self._shared = shared
        self._slots = Slots(target.concurrency, target.timeout, lambda: shared.reach.get(target.name))
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes = Outcomes(shared.ledger, self._on_written)
        self._unwritten = 0
        self._standing = Standing()
        self._faults, self._overruns = Seldom(log), Seldom(log, logging.WARNING)
        self.asleep = False
        limits = Limits(target.rate, self.outage, shared.store.crowded)
        self._claiming = Claiming(target, shared, self._slots, limits, self._start_ready)

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
        if self._paused:
            return await self._pause()
        looked_at = self._shared.now()
        self._claiming.look(time.monotonic())
        await (self.give_back() if self.down else self._claiming.give_stale_back())
        await self._come_back()
        room, took, left = await self._fill()
        if self._shared.stopping or (room and took == room):
            return None
        if not room:
            return self._full()
        rest = await self._shared.rest([self.target.name], looked_at, self.bell, took=took > 0, share=left)
        return Rest(min(rest.seconds, self._claiming.patience), quiet=rest.quiet)

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
        await self._claiming.give_back()

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

    @property
    def _paused(self) -> bool:
        return self._shared.store.is_paused(self.target.name)

    async def _pause(self) -> Rest:
        """Nothing that waits is started; whoever resumes the target rings, and what is due then is a backlog."""
        await self.give_back()
        self._claiming.backlog = Backlog(since=self._shared.now())
        return Rest(LONGEST_REST, quiet=True)

    async def _come_back(self) -> None:
        """After an outage, and at the start, which may be after one, what failed meanwhile is due again in its old
        place, and all of it is a backlog."""
        if self.outage is None:
            return
        if self._new:
            self.outage.recall(await self._shared.store.unreached(self.target.name, self._shared.now(), REMEMBERED))
            self._new = False
        if not self.outage.over:
            return
        returning = self.outage.returning(self._outcomes.unwritten)
        self.outage.hurried(returning)  # first, since what fails again meanwhile is to be hurried up again
        try:
            await self._shared.store.hasten(self.target.name, returning, self._shared.now())
        except Exception:
            self.outage.recall(returning)
            raise
        self._claiming.backlog = Backlog(since=self._shared.now())

    async def _fill(self) -> tuple[int, int, Room | None]:
        """Claim and start as much as there is room for; the room there was, what was started (all of the room, if
        there may be more), and what each source might still have had."""
        if not self.target.in_process:
            return await self._fill_now()
        if self._room() == 0:
            return 0, 0, None
        await self._shared.gate.enter()
        try:
            return await self._fill_now()
        finally:
            self._shared.gate.leave()

    async def _fill_now(self) -> tuple[int, int, Room | None]:
        room = self._room()
        return (room, *await self._claiming.fill(room)) if room else (0, 0, None)

    def _room(self) -> int:
        return 0 if self._is_behind() else self._claiming.room(time.monotonic())

    def _is_behind(self) -> bool:
        """Too many outcomes wait to be written."""
        return self._unwritten > UNWRITTEN + self.target.concurrency

    def _full(self) -> Rest:
        """Without room: until a slot is free or outcomes are written, which rings, or the limits allow more."""
        return Rest(self._claiming.patience) if self._is_behind() else self._claiming.full(time.monotonic())

    def _start_ready(self) -> None:
        while (claimed := self._next()) is not None:
            self.begin(claimed)

    def _next(self) -> Claimed | None:
        if self._shared.stopping or not self._slots.waiting or self._paused:
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
        except Exception as error:  # noqa: BLE001  # a fault of ours: told, though not each time
            line = f"attempt lost target={self.target.name} seq={attempt.claimed.event.seq}"
            self._faults.say(time.monotonic(), kind_of(error), line, error)
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
        self._claiming.ended()
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
        if not self._claiming.enough or self.down:
            self.bell.ring()

    def _on_stuck(self, attempt: Attempt) -> None:
        """It may go on for ever, so nobody who wants to be alone waits for it."""
        line = f"attempt goes on after its time target={self.target.name} seq={attempt.claimed.event.seq}"
        self._overruns.say(time.monotonic(), "", f"{line}; it keeps its slot until it returns")
        self._slots.stuck += 1
        if self.target.in_process:
            self._shared.gate.leave()
        self._shared.pulse.beat()
