"""Performing: operations that run in the writer, several in one transaction, each under a savepoint of its own."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

import msgspec

from oncebox.errors import StoreError
from oncebox.model import Performed
from oncebox.store.books import Books, Entries
from oncebox.store.busy import Busy
from oncebox.store.calls import Asked
from oncebox.store.faults import is_of_the_disk
from oncebox.store.guard import Guard
from oncebox.store.jobs import roll_back
from oncebox.store.operations import keep, look_up
from oncebox.store.routing import Routing
from oncebox.store.statement import BEGIN, COMMIT, RELEASE, ROLLBACK_TO, SAVEPOINT
from oncebox.store.transaction import HandlerTransaction, hold_to

SLICE = 0.005
BROKEN = "the operation's SQL ended the transaction (such as by `insert or rollback`); nothing of it was kept"


class Served(msgspec.Struct):
    """The answers to the first of a group, errors among them, and the targets that got new deliveries."""

    answers: list[Performed | Exception] = []
    targets: set[str] = set()


class Performing:
    """The key, the effects and the reply of a call commit together: no call is ever found half made."""

    def __init__(
        self, db: sqlite3.Connection, books: Books, guard: Guard, routing: Routing, busy: Busy, *, sync_timeout: float
    ) -> None:
        self._db, self._books, self._guard, self._routing, self._busy = db, books, guard, routing, busy
        self._sync_timeout = sync_timeout

    def serve(self, group: Sequence[Asked]) -> Served:
        """Perform as many as fit into a few milliseconds; the others wait for the next group.

        Raises sqlite3.Error when the disk fails; then nothing is told to anybody.
        """
        try:
            return self._together(group)
        except Exception as error:
            roll_back(self._db, self._books)
            if is_of_the_disk(error):
                raise
            if len(group) == 1:
                return Served([error])
        return self._apart(group)

    def _together(self, group: Sequence[Asked]) -> Served:
        """One transaction, if anything is new; replays alone need none."""
        db, served = self._db, Served([], set())
        until, writing = time.monotonic() + SLICE, False
        for asked in group:
            found = look_up(db, asked.call)
            if found.state != "new":
                served.answers.append(found)
                continue
            if not writing:
                db.execute(BEGIN)
                writing = True
            answer, woken = self._perform(asked, found.attempt)
            served.answers.append(answer)
            served.targets |= woken
            if not db.in_transaction:
                self._books.forget()
                return self._after_a_break(group[: len(served.answers) - 1], answer)
            if time.monotonic() > until:
                break
        if writing:
            self._books.save(db)
            db.execute(COMMIT)
        return served

    def _after_a_break(self, before: Sequence[Asked], answer: Performed | Exception) -> Served:
        """The transaction is gone, with the work of all before. Who ended it is answered, not tried again."""
        served = self._apart(before)
        kept = isinstance(answer, Performed) and answer.state == "done"
        served.answers.append(StoreError(BROKEN) if kept else answer)
        return served

    def _apart(self, group: Sequence[Asked]) -> Served:
        """Each in a transaction of its own."""
        served = Served([], set())
        for asked in group:
            one = self.serve([asked])
            served.answers += one.answers
            served.targets |= one.targets
        return served

    def _perform(self, asked: Asked, attempt: int) -> tuple[Performed | Exception, set[str]]:
        """One call under a savepoint: what it wrote stays only with its reply."""
        db, books = self._db, self._books
        before, books.entries = books.entries, Entries()
        db.execute(SAVEPOINT)
        view = HandlerTransaction(db, self._guard, books, self._routing, parent=None, now=asked.call.at)
        answer = self._outcome(asked, view, attempt)
        kept = isinstance(answer, Performed) and answer.state == "done"
        if not db.in_transaction:
            return answer, set()
        if not kept:
            db.execute(ROLLBACK_TO)
        db.execute(RELEASE)
        if kept:
            before.update(books.entries)
        books.entries = before
        return answer, view.targets if kept else set()

    def _outcome(self, asked: Asked, view: HandlerTransaction, attempt: int) -> Performed | Exception:
        hold_to(self._guard, self._sync_timeout)
        self._busy.begin("operation", operation=asked.call.operation)
        try:
            result, kept = asked.perform(view, attempt)
        except BaseException as error:  # noqa: BLE001  # SystemExit would end the writer's thread
            return view.refused or StoreError(f"how the operation ended cannot be told: {type(error).__name__}")
        finally:
            self._busy.end()
            view.end()
        if view.refused is not None:
            return view.refused
        if not kept or not self._db.in_transaction:
            return Performed("done" if kept else "freed", result, attempt)
        try:
            keep(self._db, asked.call, attempt, result)
        except sqlite3.DataError as error:  # larger than SQLite takes
            return StoreError(f"the reply cannot be kept: {error}")
        return Performed("done", result, attempt)
