"""Flight: a call in the making, and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from oncebox.perform.answer import CONFLICT, IN_PROGRESS, Answer

PER_KEY = 32
IN_ALL = 256
PATIENCE = 10.0
HELD = 16 << 20


class Flight:
    """One call. Whoever hangs up cancels nothing: nobody waits for the work itself, only for its answer."""

    def __init__(self, fingerprint: bytes) -> None:
        loop = asyncio.get_running_loop()
        self.fingerprint = fingerprint
        self.landed: asyncio.Future[Answer] = loop.create_future()
        self.task: asyncio.Task[object] | None = None
        self.waiting = 0
        self._judged: asyncio.Future[bool] = loop.create_future()

    def own(self) -> None:
        """The key is this call's: anything else under it is a conflict."""
        if not self._judged.done():
            self._judged.set_result(True)

    def land(self, answer: Answer) -> None:
        """Tell all who wait; the first answer stays."""
        if not self.landed.done():
            self.landed.set_result(answer)
        if not self._judged.done():
            self._judged.set_result(answer.kept and not answer.replayed)

    async def owned(self, patience: float) -> bool | None:
        """Whether the key turned out to be this call's; None if that is not known in time."""
        await asyncio.wait({self._judged}, timeout=patience)
        return self._judged.result() if self._judged.done() else None


class Waiters:
    """Those that wait for the first call under their key, bounded for each key and in all.

    A twin keeps nothing but its place; another request may still be performed, so it keeps its body, and these are
    bounded, too.
    """

    def __init__(
        self, patience: float = PATIENCE, per_key: int = PER_KEY, in_all: int = IN_ALL, held: int = HELD
    ) -> None:
        self._patience, self._per_key, self._in_all, self._most_held = patience, per_key, in_all, held
        self.count = 0
        self.held = 0

    async def join(self, flight: Flight) -> Answer:
        """The first's answer for its twin."""
        if self._is_full(flight):
            return IN_PROGRESS
        with self._place(flight, 0):
            await asyncio.wait({flight.landed}, timeout=self._patience)
        return flight.landed.result().again() if flight.landed.done() else IN_PROGRESS

    async def judge(self, flight: Flight, size: int) -> Answer | None:
        """The answer to another request of this size; None: the key is not the flight's after all, ask again."""
        if self._is_full(flight) or (self.held and self.held + size > self._most_held):
            return IN_PROGRESS
        with self._place(flight, size):
            owned = await flight.owned(self._patience)
            if owned is None:
                return IN_PROGRESS
            await asyncio.sleep(0)
            return CONFLICT if owned else None

    def _is_full(self, flight: Flight) -> bool:
        return flight.waiting >= self._per_key or self.count >= self._in_all

    @contextmanager
    def _place(self, flight: Flight, size: int) -> Iterator[None]:
        flight.waiting += 1
        self.count += 1
        self.held += size
        try:
            yield
        finally:
            flight.waiting -= 1
            self.count -= 1
            self.held -= size
