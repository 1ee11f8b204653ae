"""Calling: what the store does for operations."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection

from oncebox.model import Call, Performed, Result, StagedWrites
from oncebox.store import UNKNOWN, Ended, Perform, operations
from oncebox.store.books import Books
from oncebox.store.staged import Staged
from oncebox.store.statement import BEGIN, COMMIT
from oncebox.store.transaction import HandlerTransaction
from oncebox.store.writer import Writer


class Calling:
    """The calls of operations, by (caller, key). Part of SQLiteStore."""

    def __init__(
        self,
        writer: Writer,
        books: Books,
        staged: Staged,
        view: Callable[[sqlite3.Connection, int | None, int], HandlerTransaction],
        boot: str,
    ) -> None:
        self._writer, self._books, self._staged, self._view, self._boot = writer, books, staged, view, boot

    def perform(self, call: Call, perform: Perform, size: int = 0) -> asyncio.Future[Performed]:
        """Perform a call in the writer unless it has been made before; `size` is what the request holds in memory.

        Raises Overloaded, StorageFull; the future raises them too, and StoreError.
        """
        return self._writer.perform(call, perform, size)

    async def begin(self, call: Call) -> Performed:
        """Look a call up and write that it runs if it is new. Raises Overloaded, StorageFull."""
        self._writer.admit()
        return await self._writer.submit(lambda db: operations.begin(db, call, self._boot))

    async def end(
        self, call: Call, attempt: int, ended: Ended, now: int, staged: StagedWrites | None = None, otherwise: str = ""
    ) -> Ended | None:
        """Write how an attempt ended, with its staged writes in one savepoint; if those fail it ends as `otherwise`,
        with the reason. What was written; None when the attempt is not the current one."""
        if staged is None or not staged.statements:
            return await self._writer.submit(lambda db: self._end(db, call, attempt, ended, now))
        written = [ended]

        def end(db: sqlite3.Connection, why: str) -> None:
            written[0] = Ended(otherwise or UNKNOWN, why=why) if why else ended
            operations.end(db, call, written[0], now)

        current = await self._writer.slice(
            lambda db: self._staged.commit(
                db,
                staged,
                lambda: operations.is_current(db, call, attempt, self._boot),
                lambda: self._view(db, None, now),
                lambda why: end(db, why),
                operation=call.operation,
            )
        )
        return written[0] if current else None

    def _end(self, db: sqlite3.Connection, call: Call, attempt: int, ended: Ended, now: int) -> Ended | None:
        if not operations.is_current(db, call, attempt, self._boot):
            return None
        operations.end(db, call, ended, now)
        return ended

    async def recover(self, retry_safe: Collection[str], now: int) -> tuple[int, int]:
        """To be called before anything is performed: what a dead process left running may run again if its operation
        is one of these, else it is unknown; how many of each."""
        return await self._writer.submit(lambda db: operations.recover(db, self._boot, retry_safe, now))

    async def resolve(self, caller: str, key: str, result: Result | None, who: str, now: int) -> bool:
        """Somebody decides of an unknown call: it was done and this is its result, or its key is free. False: it is
        not unknown."""
        return await self._writer.submit(lambda db: operations.resolve(db, caller, key, result, who, now))

    async def expire(self, before: int) -> int:
        """One step of care: remove some of the calls that ended before then; how many. 0: none is left."""

        def work(db: sqlite3.Connection) -> int:
            db.execute(BEGIN)
            removed = operations.expire(db, before)
            self._books.save(db)
            db.execute(COMMIT)
            return removed

        return await self._writer.slice(work)
