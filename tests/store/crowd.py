"""Many senders that send again as soon as they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import anyio

from oncebox.model import Arrival
from oncebox.store.sqlite import SQLiteStore


@asynccontextmanager
async def sending(store: SQLiteStore, make: Callable[[str], Arrival], senders: int = 64) -> AsyncIterator[list[str]]:
    """So many of them for as long as the block lasts; the ids that were answered."""
    answered: list[str] = []
    numbers = count()
    going = True

    async def send() -> None:
        while going:
            id = f"crowd-{next(numbers)}"
            await store.accept([make(id)])
            answered.append(id)

    tasks = [asyncio.create_task(send()) for _ in range(senders)]
    try:
        yield answered
    finally:
        going = False
        await asyncio.gather(*tasks)


async def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    with anyio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110  # what it waits for is the doing of others
            await anyio.sleep(0.001)
