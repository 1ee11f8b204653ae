"""Flight: a call in the making, and those who wait for it."""

from __future__ import annotations

import asyncio

from oncebox.perform.answer import CONFLICT, IN_PROGRESS, Answer

PER_KEY = 32
IN_ALL = 256
PATIENCE = 10.0


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
    """Twins that wait for the first, bounded for each key and in all."""

    def __init__(self, patience: float = PATIENCE, per_key: int = PER_KEY, in_all: int = IN_ALL) -> None:
        self._patience, self._per_key, self._in_all = patience, per_key, in_all
        self.count = 0

    async def join(self, flight: Flight, fingerprint: bytes) -> Answer | None:
        """The first's answer; None: the key is not the flight's after all, ask again."""
        if flight.waiting >= self._per_key or self.count >= self._in_all:
            return IN_PROGRESS
        flight.waiting += 1
        self.count += 1
        try:
            if flight.fingerprint != fingerprint:
                return await self._judge(flight)
            await asyncio.wait({flight.landed}, timeout=self._patience)
        finally:
            flight.waiting -= 1
            self.count -= 1
        return flight.landed.result().again() if flight.landed.done() else IN_PROGRESS

    async def _judge(self, flight: Flight) -> Answer | None:
        owned = await flight.owned(self._patience)
        if owned is None:
            return IN_PROGRESS
        await asyncio.sleep(0)
        return CONFLICT if owned else None
