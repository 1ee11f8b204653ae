"""Outcomes: how attempts ended, written down many at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import anyio
import msgspec
from anyio.abc import TaskGroup

from oncebox.drain.attempt import Attempt
from oncebox.drain.ledger import Ledger
from oncebox.model import Settled

# A commit for each would cost more than the attempts themselves; nobody waits for these.
MOMENT = 0.002
MANY = 64


class End(msgspec.Struct, frozen=True):
    """An attempt whose outcome is to be written; `reason` is for the log."""

    attempt: Attempt
    settled: Settled
    reason: str


class Outcomes:
    """Gathers what ends within a moment, and writes it in one go. `written` is told afterwards; for each end whether it
    was still the current attempt of its delivery."""

    def __init__(self, ledger: Ledger, written: Callable[[Sequence[End], Sequence[bool]], None]) -> None:
        self._ledger = ledger
        self._written = written
        self._waiting: list[End] = []
        self._many = anyio.Event()
        self._unwritten: set[int] = set()

    @property
    def unwritten(self) -> Collection[int]:
        """The events of whose ends the file does not know yet."""
        return self._unwritten

    def add(self, end: End, group: TaskGroup) -> None:
        """Have the end of an attempt written down soon, however long the file refuses."""
        self._waiting.append(end)
        self._unwritten.add(end.settled.seq)
        if len(self._waiting) == 1:
            group.start_soon(self._write_soon)
        elif len(self._waiting) >= MANY:
            self._many.set()

    async def _write_soon(self) -> None:
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(MOMENT):
                await self._many.wait()
            ends, self._waiting, self._many = self._waiting, [], anyio.Event()
            current = await self._ledger.settle_all([end.settled for end in ends])
        self._unwritten.difference_update(end.settled.seq for end in ends)
        self._written(ends, current)
