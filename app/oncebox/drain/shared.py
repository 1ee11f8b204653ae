"""Shared: what the drain's loops have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec
from anyio.abc import TaskGroup

from oncebox.drain.attempt import Attempt
from oncebox.drain.ledger import Ledger
from oncebox.drain.signal import Bell, Gate, Pulse
from oncebox.model import MICROSECONDS
from oncebox.recent import Recent
from oncebox.store import Share, Store

# Timers are set by the wall clock, which may jump: a loop looks again at least this often.
LONGEST_REST = 60.0
BLOCKED_REST = 1.0


Reach = Mapping[str, Collection[str]]


class Rest(msgspec.Struct, frozen=True):
    """How long a loop has nothing to do. `quiet`: because nothing is due."""

    seconds: float
    quiet: bool = False


class Loop(Protocol):
    """Something that the drain serves for ever: a turn, then a rest that its bell ends early."""

    @property
    def bell(self) -> Bell: ...

    asleep: bool

    async def turn(self) -> Rest | None:
        """Do what there is to do. None: look again at once."""
        ...


class Shared:
    """The store and the clock, who is in flight, and the gate that lets a suspect run alone. `reach` says which sources
    a target's events come from; of one that is not in it: any."""

    def __init__(self, store: Store, now: Callable[[], int], jitter: Callable[[], float], reach: Reach) -> None:
        self.store = store
        self.reach = reach
        self.now = now
        self.jitter = jitter
        self.ledger = Ledger(store, now)
        self.attempts: set[Attempt] = set()
        self.gate = Gate(closed=True)
        self.pulse = Pulse()
        self.recent = Recent()
        self.suspect_bell = Bell()
        self.stopping = False
        self.group: TaskGroup | None = None

    async def rest(
        self, names: Sequence[str], looked_at: int, bell: Bell, *, took: bool, share: Share | None = None
    ) -> Rest:
        """How long these targets can wait, after a look at `looked_at` that took something or nothing; sources that
        have no `share` wait for another's end, not for a time. `bell` was quiet before the look."""
        due = await self.store.next_due(names, share)
        if due is None:
            return Rest(LONGEST_REST, quiet=True)
        wait = (due - self.now()) / MICROSECONDS
        if wait > 0:
            return Rest(min(wait + 0.001, LONGEST_REST), quiet=True)
        if took or due > looked_at or bell.rung:
            return Rest(0)
        # Due, and yet it was not taken: a suspect, or something that a person has to see to.
        self.suspect_bell.ring()
        return Rest(BLOCKED_REST)
