"""Ledger: outcomes are written down, however long the file refuses."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import msgspec

from oncebox.drain.verdict import bounded
from oncebox.model import Claimed, Settled, StagedWrites
from oncebox.seldom import Seldom
from oncebox.store import Store

T = TypeVar("T")

PAUSE = 1.0

log = logging.getLogger("oncebox.drain")


class Ledger:
    """Writes through the store; what it refuses waits in memory and is tried again every second."""

    def __init__(self, store: Store, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self._faults = Seldom(log)

    async def settle(self, settled: Settled, staged: StagedWrites | None, otherwise: Settled | None) -> bool:
        """Write how an attempt ended; False if it was no longer the current one."""
        try:
            return await self.insist("settle", lambda: self._store.settle(settled, staged, otherwise), staged=staged)
        except (ValueError, ArithmeticError, TypeError) as error:
            # A value that the database cannot take: no disk's fault, and it would not be taken later either.
            failed = msgspec.structs.replace(otherwise or settled, error=bounded(f"staged: {error}"))
            return await self.insist("settle", lambda: self._store.settle(failed))

    async def settle_all(self, settled: Sequence[Settled]) -> list[bool]:
        """Write how attempts without staged writes ended, all in one go."""
        return await self.insist("settle_all", lambda: self._store.settle_all(settled))

    async def release(self, claimed: Sequence[Claimed]) -> None:
        """Give deliveries back that were not tried; their attempts do not count."""
        if claimed:
            await self.insist("release", lambda: self._store.release(claimed, self._now()))

    async def insist(self, what: str, call: Callable[[], Awaitable[T]], *, staged: StagedWrites | None = None) -> T:
        """Make a store call until it succeeds."""
        while True:
            try:
                return await call()
            except Exception as error:
                if staged is not None and isinstance(error, (ValueError, ArithmeticError, TypeError)):
                    raise
                line = f"store call failed call={what}; it is tried again every second"
                self._faults.say(time.monotonic(), what, line, error)
            await anyio.sleep(PAUSE)


def report(settled: Settled, reason: str = "") -> None:
    """One line for an attempt's end. What an error says may quote a body, so only its kind is told."""
    level = {"done": logging.DEBUG, "dead": logging.ERROR}.get(settled.state, logging.WARNING)
    if log.isEnabledFor(level):
        log.log(
            level,
            "attempt ended target=%s seq=%d run=%d attempt=%d outcome=%s state=%s reason=%s ms=%.1f due=%d",
            settled.target,
            settled.seq,
            settled.run,
            settled.attempt,
            settled.outcome,
            settled.state,
            reason or "-",
            settled.duration / 1000,
            settled.due,
        )
