"""Claiming: what a lane takes from the store, how much of it in advance, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

from oncebox.drain.ahead import Ahead
from oncebox.drain.backlog import Backlog
from oncebox.drain.limits import Limits
from oncebox.drain.room import Room
from oncebox.drain.shared import LONGEST_REST, Rest, Shared
from oncebox.drain.signal import together
from oncebox.drain.slots import Slots
from oncebox.drain.target import Target
from oncebox.store.catch import MOST

# Seconds after which the others are looked at although enough waits, because nothing of that can start; and after which
# it is given back: it neither blocks others nor looks as if it ran.
LULL = 0.01
STALE = 0.25


class Claiming:
    """Fills the slots of one target. `start` is called whenever something more is claimed and waits for a slot."""

    def __init__(self, target: Target, shared: Shared, slots: Slots, limits: Limits, start: Callable[[], None]) -> None:
        # What is due already when the process starts is a backlog.
        self.backlog = Backlog(since=shared.now())
        self._target = target
        self._shared = shared
        self._slots = slots
        self._limits = limits
        self._start = start
        # In advance only for targets that end faster than claims are written, of which each is waited for elsewhere.
        self._looks_ahead = not target.in_process and target.rate is None
        self._ahead = Ahead()
        self._ended = 0
        self._looked_at = 0.0
        self._still = 0

    @property
    def enough(self) -> bool:
        """So much is claimed and waits for a slot that no more is wanted; of large bodies what one claim may bring."""
        return self._slots.weight >= MOST or self._lively() > self._ahead.count * 3 // 4

    @property
    def patience(self) -> float:
        """Seconds until the next look at the latest: what waits and cannot start is looked at again soon."""
        return LULL if self._slots.waiting else LONGEST_REST

    def ended(self) -> None:
        """One attempt has ended."""
        self._ended += 1

    def room(self, now: float) -> int:
        """How many to claim now (monotonic seconds)."""
        return int(max(0, min(self._wanted(now), self._limits.room(now))))

    def full(self, now: float) -> Rest:
        """Without room: until a slot is free, which rings, or until the rate or the breaker allows more."""
        if self._slots.waiting or self._slots.free <= 0:
            return Rest(self.patience)
        return Rest(min(max(0.001, self._limits.wait(now)), LONGEST_REST))

    async def fill(self, room: int) -> tuple[int, Room]:
        """Claim so many and start what can start; what was started (all of the room, if there may be more), and what
        each source might still have had."""
        left = self._slots.room(max(0, self._ahead.count - self._slots.waiting))
        # What has been claimed must be started or given back, even if this task is cancelled meanwhile.
        with anyio.CancelScope(shield=True):
            took, left = await self._claim(room, left)
        self._looked_at = time.monotonic()
        self.backlog = self.backlog.after(room, room if left.tight else took)
        return took, left

    def look(self, now: float) -> None:
        """Claim in advance what ends within a moment; nothing of a target that has become slow."""
        self._still = self._slots.still(now, LULL)
        if self._looks_ahead:
            self._ahead = self._ahead.after(self._ended, now, self._target.concurrency)

    async def give_back(self) -> None:
        """What was claimed and has not started is claimed again later."""
        self._ahead = Ahead(ended=self._ended, since=time.monotonic())
        await self._shared.ledger.release(self._slots.clear())

    async def give_stale_back(self) -> None:
        """What would wait for long: all of it at a target that has become slow, else that of which nothing starts."""
        if not self._slots.waiting:
            return
        if self._ahead.overdone(self._slots.waiting, self._target.concurrency):
            await self.give_back()
        else:
            await self._shared.ledger.release(self._slots.clear_idle(time.monotonic(), STALE))

    def _wanted(self, now: float) -> int:
        """For the free slots and what is claimed in advance; if enough waits and yet a slot is free, nothing of that
        can start: then for the others."""
        free = self._slots.free
        if not self.enough:
            return free + self._ahead.count - self._lively()
        return free if now - self._looked_at >= LULL else 0

    def _lively(self) -> int:
        """What waits and moves on."""
        return max(0, self._slots.waiting - self._still)

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
        claimed = await self._shared.store.claim(self._target.name, count, self._shared.now(), since, share)
        if self._shared.stopping:
            await self._shared.ledger.release(claimed)
            return 0, share
        self._limits.took(len(claimed), time.monotonic())
        self._slots.put(claimed)
        self._start()
        return count if claimed.cut else len(claimed), share.after(claimed)
