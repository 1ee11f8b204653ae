"""SQLite: one file, locked and opened as a Store for as long as a block lasts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from oncebox.route import Router
from oncebox.store.file import SQLiteStore
from oncebox.store.lock import Lock
from oncebox.store.options import DEFAULTS, Options
from oncebox.store.routing import Routing, nowhere

__all__ = ["Options", "SQLiteStore", "open_store"]


@asynccontextmanager
async def open_store(
    path: Path,
    *,
    router: Router = nowhere,
    internal: frozenset[str] = frozenset(),
    keeps_dead: frozenset[str] = frozenset(),
    skipping: frozenset[str] = frozenset(),
    targets: frozenset[str] | None = None,
    woken: Callable[[set[str]], None] = lambda _targets: None,
    options: Options = DEFAULTS,
) -> AsyncIterator[SQLiteStore]:
    """Lock and open the file for as long as the block lasts; on leaving it, finish what was accepted and close.

    Raises Locked, Unwritable, SchemaTooNew, StoreError.
    """
    lock = Lock(path)
    lock.acquire()
    try:
        store = SQLiteStore(lock, Routing(router, internal, keeps_dead, skipping, targets))
        await store.open(woken, options)
        try:
            failure: Exception | None = None
            async with anyio.create_task_group() as group:
                group.start_soon(store.writer.run)
                try:
                    yield store
                except Exception as error:  # noqa: BLE001  # raised below, as itself and not in a group of one
                    failure = error
                finally:
                    store.writer.close()
            if failure is not None:
                raise failure
        finally:
            with anyio.CancelScope(shield=True):
                await store.close()
    finally:
        lock.release()
