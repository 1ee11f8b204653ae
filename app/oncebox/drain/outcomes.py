"""Outcomes: how attempts ended, written down many at a time."""

from __future__ import annotations

import asyncio

import anyio
from anyio.abc import TaskGroup

from oncebox.drain.ledger import Ledger
from oncebox.model import Settled

# A commit for each would cost more than the attempts themselves; nobody waits for these.
MOMENT = 0.002
MANY = 64


class Outcomes:
    """Gathers what ends within a moment, and writes it in one go."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[tuple[Settled, asyncio.Future[bool]]] = []
        self._many = anyio.Event()

    async def settle(self, settled: Settled, group: TaskGroup) -> bool:
        """Write how an attempt ended; False if it was no longer the current one."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((settled, future))
        if len(self._waiting) == 1:
            group.start_soon(self._write_soon)
        elif len(self._waiting) >= MANY:
            self._many.set()
        return await future

    async def _write_soon(self) -> None:
        with anyio.move_on_after(MOMENT):
            await self._many.wait()
        waiting, self._waiting, self._many = self._waiting, [], anyio.Event()
        with anyio.CancelScope(shield=True):
            written = await self._ledger.settle_all([settled for settled, _ in waiting])
        for (_, future), current in zip(waiting, written, strict=True):
            if not future.done():
                future.set_result(current)
