"""Jobs: small writes of our own that share a transaction, and how a piece of work waits for its turn."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from oncebox.errors import StoreError
from oncebox.store.books import Books
from oncebox.store.faults import is_busy
from oncebox.store.queue import GROUP
from oncebox.store.statement import BEGIN, COMMIT, ROLLBACK

Work = Callable[[sqlite3.Connection], Any]


class Job(msgspec.Struct):
    """A piece of work that waits for its turn."""

    work: Work
    future: asyncio.Future[Any]
    since: float = msgspec.field(default_factory=time.monotonic)


class Broken(StoreError):
    """Work ended the transaction that it shared."""


def roll_back(db: sqlite3.Connection, books: Books) -> None:
    """Nothing of the transaction is kept or counted."""
    books.forget()
    if db.in_transaction:
        db.execute(ROLLBACK)


class Jobs:
    """First come, first served, as many as fit into a group at a time."""

    def __init__(self, db: sqlite3.Connection, books: Books) -> None:
        self._db, self._books = db, books
        self._waiting: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def append(self, job: Job) -> None:
        """It is the last."""
        self._waiting.append(job)

    def take(self) -> list[Job]:
        """The next group."""
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP))]

    def put_back(self, jobs: Sequence[Job]) -> None:
        """They come first the next time."""
        self._waiting.extendleft(reversed(jobs))

    def together(self, jobs: Sequence[Job]) -> list[Any]:
        """On the writer's thread: all in one transaction; if one fails, each in its own. Errors are among the results;
        raises sqlite3.Error when another program holds the file."""
        try:
            return self._transact(jobs)
        except Exception as error:
            roll_back(self._db, self._books)
            if is_busy(error):
                raise
            if len(jobs) == 1:
                return [error]
        results: list[Any] = []
        for job in jobs:
            results += self.together([job])
        return results

    def _transact(self, jobs: Sequence[Job]) -> list[Any]:
        self._db.execute(BEGIN)
        results = []
        for job in jobs:
            results.append(job.work(self._db))
            if not self._db.in_transaction:
                raise Broken("the statements ended the transaction (such as by `insert or rollback`)")
        self._books.save(self._db)
        self._db.execute(COMMIT)
        return results
