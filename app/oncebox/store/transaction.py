"""Transaction: what a handler writes with, inside the transaction that also marks its delivery done."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from oncebox.emit import emission
from oncebox.errors import EmitError, ForbiddenSQL
from oncebox.model import Arrival
from oncebox.store import Params, Row
from oncebox.store.accepts import insert, look_up
from oncebox.store.books import Books, Entries
from oncebox.store.faults import is_of_the_disk
from oncebox.store.guard import Guard
from oncebox.store.routing import Routing
from oncebox.store.statement import FLUSH, FLUSHED, SHAPE, SHAPED, UNSHAPE, own

T = TypeVar("T")

# Anything but these may change tables, and is undone whole where its result is refused.
READING = ("select", "values")
WRITING = ("insert", "update", "delete", "replace", "with")
DEPTH = 20
DEEP = own(
    "with recursive up (seq, depth) as (select ?, 1 union all select e.parent, up.depth + 1 from up "
    "join events e on e.seq = up.seq where e.parent is not null and up.depth <= ?) select max(depth) from up"
)


class HandlerTransaction:
    """One handler's view of the file. It is dead once the handler has returned, so that it cannot be kept. `refused`
    is what the disk refused, whatever the handler made of that."""

    def __init__(
        self,
        db: sqlite3.Connection,
        guard: Guard,
        books: Books,
        routing: Routing,
        *,
        parent: int | None,
        now: int,
        suffix: str = "",
    ) -> None:
        self.targets: set[str] = set()
        self.refused: sqlite3.Error | None = None
        self._db = db
        self._guard = guard
        self._books = books
        self._routing = routing
        self._parent = parent
        self._now = now
        self._suffix = suffix
        self._open = True

    def execute(self, sql: str, params: Params = ()) -> list[Row]:
        """Run one statement; the rows come back read. Raises ForbiddenSQL for what belongs to the inbox."""
        return self._guarded(sql, lambda: self._db.execute(sql, params).fetchall())

    def executemany(self, sql: str, params: Iterable[Params]) -> int:
        """Run one statement for each set of parameters; the number of rows changed."""
        return self._guarded(sql, lambda: self._db.executemany(sql, params).rowcount)

    def emit(
        self,
        source: str,
        *,
        id: str,
        type: str | None = None,
        body: object = b"",
        headers: dict[str, str] | None = None,
    ) -> bool:
        """Write a new event into an internal source; False if that id was there already."""
        return self.add(emission(source, id, type, body, headers, self._parent, self._now))

    def add(self, arrival: Arrival) -> bool:
        """Write an emitted event with its deliveries. Raises EmitError for a source that is not internal."""
        self._refuse_ended()
        self._refuse_source(arrival.source)
        if self._suffix:
            arrival = msgspec.structs.replace(arrival, id=arrival.id + self._suffix)
        before = self._guard.rest()
        try:
            return self._add(arrival)
        except sqlite3.Error as error:
            self._note(error)
            raise
        finally:
            self._guard.resume(before)

    def _add(self, arrival: Arrival) -> bool:
        """What cannot be written is not counted, either: the handler may go on after the error."""
        if look_up(self._db, [[arrival]]):
            return False
        self._refuse_loop()
        books = self._books
        entries, books.entries = books.entries, Entries()
        try:
            self.targets |= insert(self._db, [(books.number(), arrival)], books, self._routing)
            entries.update(books.entries)
        finally:
            books.entries = entries
        return True

    def end(self) -> None:
        """Nothing can be written through this object any more."""
        self._open = False

    def _guarded(self, sql: str, run: Callable[[], T]) -> T:
        self._refuse_ended()
        self._guard.check_text(sql)
        start = sql.lstrip()[:7].lower()
        try:
            if start.startswith(READING) or (start.startswith(WRITING) and not self._guard.virtual):
                return self._watched(run)
            return self._apart(lambda: self._watched(run))
        except sqlite3.Error as error:
            self._note(error)
            raise

    def _note(self, error: sqlite3.Error) -> None:
        if is_of_the_disk(error):
            self.refused = error

    def _watched(self, run: Callable[[], T]) -> T:
        """Run a handler's statement and read its rows under guard: a row may take as long as a statement."""
        before = self._guard.watch()
        try:
            return run()
        except sqlite3.DatabaseError as error:
            if self._guard.reason:
                raise ForbiddenSQL(f"handlers may not use {self._guard.reason}") from error
            raise
        finally:
            self._guard.resume(before)

    def _apart(self, run: Callable[[], T]) -> T:
        """Run what may change tables or write to a virtual one. If it fails it has changed nothing, whatever the
        handler makes of that; and a search table that cannot be written fails here, not in everybody's commit."""
        before = self._guard.rest()
        self._db.execute(SHAPE)
        try:
            result = run()
            self._guard.check_shape()
            if self._guard.virtual and self._db.in_transaction:
                self._db.execute(FLUSH)
                self._db.execute(FLUSHED)
            return result
        except BaseException:
            if self._db.in_transaction:
                self._db.execute(UNSHAPE)
            raise
        finally:
            if self._db.in_transaction:
                self._db.execute(SHAPED)
            self._guard.resume(before)

    def _refuse_ended(self) -> None:
        if not self._open:
            raise ForbiddenSQL("this transaction has ended with its handler; do all writes before the handler returns")
        if not self._db.in_transaction:
            raise ForbiddenSQL("the handler's SQL has ended the transaction (such as by `insert or rollback`)")

    def _refuse_source(self, source: str) -> None:
        if source in self._routing.internal:
            return
        close = get_close_matches(source, self._routing.internal, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise EmitError(
            f"cannot emit into {source!r}: it is not an internal source that something listens to{hint} "
            "(an internal source is one that only handlers and routes mention, or that says `internal = true`)"
        )

    def _refuse_loop(self) -> None:
        if self._parent is None:
            return
        (depth,) = self._db.execute(DEEP, (self._parent, DEPTH)).fetchone()
        if depth >= DEPTH:
            raise EmitError(f"emit loop: this event would be more than {DEPTH} emits away from what arrived")


def hold_to(guard: Guard, seconds: float) -> None:
    """From now on, a handler's running SQL is interrupted after so many seconds."""
    guard.deadline = time.monotonic() + seconds
