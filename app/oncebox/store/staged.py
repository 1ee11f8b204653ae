"""Staged: what an async handler or operation wanted written is written when it has returned, together with its mark."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from oncebox.model import Arrival, StagedWrites
from oncebox.store.blame import Blame, own_fault
from oncebox.store.books import Books, Entries
from oncebox.store.busy import Busy
from oncebox.store.guard import Guard
from oncebox.store.statement import BEGIN, COMMIT, RELEASE, ROLLBACK, ROLLBACK_TO, SAVEPOINT
from oncebox.store.transaction import HandlerTransaction, hold_to

# Characters of a reason that are kept.
REASON = 1000


class Staged:
    """Writes them in transactions of their own; running SQL is interrupted after `sync_timeout` seconds."""

    def __init__(
        self,
        books: Books,
        guard: Guard,
        busy: Busy,
        blame: Blame,
        tell: Callable[[set[str]], None],
        *,
        sync_timeout: float,
    ) -> None:
        self._books, self._guard, self._busy, self._blame, self._tell = books, guard, busy, blame, tell
        self._sync_timeout = sync_timeout

    def commit(
        self,
        db: sqlite3.Connection,
        staged: StagedWrites,
        current: Callable[[], bool],
        view: Callable[[], HandlerTransaction],
        end: Callable[[str], None],
        **names: object,
    ) -> bool:
        """Commit the writes with the mark that `end` writes; it is told why they failed, empty when they did not.
        False: `current` says that the attempt is not the current one, and nothing was written."""
        db.execute(BEGIN)
        if not current():
            db.execute(ROLLBACK)
            return False
        opened = view()
        hold_to(self._guard, self._sync_timeout)
        self._busy.begin("staged writes", **names)
        try:
            why = self._write(db, opened, staged, (*names.values(), id(staged)))
        finally:
            self._busy.end()
        if not db.in_transaction:
            self._books.forget()
            db.execute(BEGIN)
        end(why)
        self._books.save(db)
        db.execute(COMMIT)
        if not why:
            self._tell(opened.targets)
        return True

    def _write(
        self, db: sqlite3.Connection, view: HandlerTransaction, staged: StagedWrites, who: tuple[object, ...]
    ) -> str:
        """Run the statements under one savepoint. If one fails none is kept; why it did. Raises sqlite3.Error for what
        the disk refuses, unless that is the fault of `who` it is."""
        books, why = self._books, ""
        before, books.entries = books.entries, Entries()
        db.execute(SAVEPOINT)
        try:
            for statement in staged.statements:
                if isinstance(statement, Arrival):
                    view.add(statement)
                else:
                    view.execute(*statement)
        except BaseException as error:  # whatever a value of the handler's does, the attempt has an outcome
            why = _why(error)
            if view.refused is not None:
                if not self._blame.is_own(who, view.refused):
                    self._blame.spared(who)
                    raise view.refused from error
                why = f"staged: {own_fault(view.refused)}"
        finally:
            view.end()
        if not db.in_transaction:
            return why or "staged: a statement ended the transaction"
        if why:
            db.execute(ROLLBACK_TO)
        else:
            before.update(books.entries)
        db.execute(RELEASE)
        books.entries = before
        return why


def _why(error: BaseException) -> str:
    """An error as text that any database takes, however long it is and whatever showing it does."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001  # an error that cannot be shown is still an error
        text = ""
    shown = (text or type(error).__name__)[:REASON].replace("\x00", "\\x00")
    return f"staged: {shown}".encode("utf-8", "backslashreplace").decode()
