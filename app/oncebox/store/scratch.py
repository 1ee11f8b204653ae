"""Scratch: a new file in which history is tried out, and which is thrown away."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from oncebox.model import Arrival, Claimed, Planned
from oncebox.route import Router
from oncebox.store.accepts import insert
from oncebox.store.books import Books
from oncebox.store.catch import claimed, unreadable
from oncebox.store.claims import COLUMNS, JOINS
from oncebox.store.history import Past
from oncebox.store.options import Options
from oncebox.store.routing import Routing
from oncebox.store.sqlite import SQLiteStore, open_store
from oncebox.store.statement import own
from oncebox.store.tables import Row, Table

KNOWN = own("select 1 from events where source = ? and id = ?")
FRESH = own(
    f"select {COLUMNS} from deliveries d {JOINS} where d.state = 'pending' and d.attempts = 0 and "
    "d.seq between ? and ? order by d.seq, d.target"
)
PUT_OFF = own(
    f"select {COLUMNS} from deliveries d indexed by deliveries_due {JOINS} where d.state = 'pending' and d.suspect = 0 "
    "and d.attempts = 1 and d.error >= 'Retry:' and d.error < 'Retry;' order by d.seq, d.target limit ?"
)
START = own("update deliveries set state = 'running', attempts = attempts + 1 where seq = ? and target = ?")
UNREADABLE = own("update deliveries set state = 'dead', error = ? where seq = ? and target = ?")
LARGEST = (1 << 63) - 1


class Unreadable(msgspec.Struct, frozen=True):
    """A delivery whose stored event no handler can be given, and why."""

    seq: int
    target: str
    why: str


Taken = list[Claimed | Unreadable]


class Scratch:
    """A store of past events under their own numbers; deliveries start in the order in which they are asked for."""

    def __init__(self, store: SQLiteStore, upto: int) -> None:
        self.store = store
        self._emitted = upto

    async def copy(self, table: Table, rows: Sequence[Row]) -> None:
        """Add rows to a copied table."""
        await self.store.change(lambda db, _: db.executemany(table.insert, rows))

    async def shape(self, table: Table) -> None:
        """Make a table as it was."""

        def work(db: sqlite3.Connection, _books: Books) -> None:
            for sql in table.statements:
                db.execute(sql)

        await self.store.change(work)

    async def take(self, events: Sequence[Past]) -> Taken:
        """Write past events down and start their deliveries. One that a handler has emitted here already is that."""

        def work(db: sqlite3.Connection, books: Books) -> Taken:
            taken: Taken = []
            for past in events:
                arrival = past.arrival
                if db.execute(KNOWN, (arrival.source, arrival.id)).fetchone() is None:
                    insert(db, [(past.seq, arrival)], books, self._routing(past))
                    taken += self._start(db, db.execute(FRESH, (past.seq, past.seq)).fetchall())
            return taken

        return await self.store.change(work)

    async def emitted(self) -> Taken:
        """Start what has been emitted here since the last call."""
        found = await self.store.change(
            lambda db, _: self._start(db, db.execute(FRESH, (self._emitted + 1, LARGEST)).fetchall())
        )
        if found:
            last = found[-1]
            self._emitted = last.seq if isinstance(last, Unreadable) else last.event.seq
        return found

    async def put_off(self, limit: int) -> Taken:
        """Start, for the second time, some of the deliveries whose handler asked to be called later."""
        return await self.store.change(lambda db, _: self._start(db, db.execute(PUT_OFF, (limit,)).fetchall()))

    def _routing(self, past: Past) -> Routing:
        """Today's routes to the handlers that are meant, without order keys: one at a time is in order anyway."""
        router, only = self.store.routing.router, past.only

        def planned(arrival: Arrival) -> Sequence[Planned]:
            return [plan for plan in router(arrival) if only is None or plan.target in only]

        return Routing(planned)

    def _start(self, db: sqlite3.Connection, rows: Sequence[Row]) -> Taken:
        taken: Taken = []
        for row in rows:
            try:
                taken.append(claimed(row, self.store.instance))
                db.execute(START, row[:2])
            except (ValueError, msgspec.MsgspecError) as error:
                why = unreadable(error)
                db.execute(UNREADABLE, (why, *row[:2]))
                taken.append(Unreadable(row[0], row[1], why))
        return taken


@asynccontextmanager
async def open_scratch(
    path: Path, *, router: Router, internal: frozenset[str], names: Collection[str], instance: str, upto: int
) -> AsyncIterator[Scratch]:
    """A new file at this path for as long as the block lasts; who opens it removes it. Events go to the targets of
    these names and to no other; numbers up to `upto` are left to past events."""

    def planned(arrival: Arrival) -> Sequence[Planned]:
        return [Planned(plan.target) for plan in router(arrival) if plan.target in names]

    options = Options(name=instance, durability="normal")
    async with open_store(path, router=planned, internal=internal, options=options) as store:
        await store.change(lambda _db, books: books.number(upto))
        yield Scratch(store, upto)
