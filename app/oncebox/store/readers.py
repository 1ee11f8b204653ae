"""Readers: short read-only look-ups beside the writer. They never checkpoint and hold no snapshot for long."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import aiosqlite

from oncebox.errors import Overloaded
from oncebox.store.migrations import connect_reader
from oncebox.store.thread import on_thread

T = TypeVar("T")

CONNECTIONS = 2
PATIENCE = 1.0
STEPS = 20_000
TOO_LONG = "the question took too long to answer; narrow it, or ask again when less is going on"


class Readers:
    """A few read-only connections, each with its thread; a query that takes too long is interrupted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._free: asyncio.LifoQueue[Reader] = asyncio.LifoQueue()
        self._all: list[Reader] = []

    async def open(self) -> None:
        """Open the connections; `close` must follow, their threads would keep the process alive."""
        for _ in range(CONNECTIONS):
            reader = Reader(self._path)
            await reader.open()
            self._all.append(reader)
            self._free.put_nowait(reader)

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a query in one read transaction. Raises Overloaded when it takes too long."""
        reader = await self._free.get()
        try:
            return await reader.read(query)
        finally:
            self._free.put_nowait(reader)

    async def close(self) -> None:
        """Close all connections."""
        while self._all:
            await self._all.pop().close()


class Reader:
    """One read-only connection on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deadline = 0.0

    async def open(self) -> None:
        self._raw = connect_reader(self._path)
        self._raw.set_progress_handler(self._overdue, STEPS)
        self._db = await aiosqlite.Connection(lambda: self._raw, 64)

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return await on_thread(self._db, self._query, query)

    async def close(self) -> None:
        await self._db.close()

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        self._deadline = time.monotonic() + PATIENCE
        self._raw.execute("begin")
        try:
            return query(self._raw)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname == "SQLITE_INTERRUPT":
                raise Overloaded(TOO_LONG, 1) from error
            raise
        finally:
            if self._raw.in_transaction:  # an error of the disk has ended it
                self._raw.execute("rollback")

    def _overdue(self) -> int:
        return int(time.monotonic() > self._deadline)
