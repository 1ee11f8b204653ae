"""Staged: what an async handler wanted written is written when it has returned, together with its mark."""

from __future__ import annotations

import sqlite3

import msgspec

from oncebox.model import Arrival, Settled, StagedWrites
from oncebox.store.books import Books, Entries
from oncebox.store.statement import RELEASE, ROLLBACK_TO, SAVEPOINT
from oncebox.store.transaction import HandlerTransaction


def apply(
    db: sqlite3.Connection,
    view: HandlerTransaction,
    staged: StagedWrites,
    settled: Settled,
    otherwise: Settled,
    books: Books,
) -> Settled:
    """Run the staged statements under one savepoint. If one fails none is kept, and `otherwise` is the outcome."""
    before, books.entries = books.entries, Entries()
    db.execute(SAVEPOINT)
    try:
        for statement in staged.statements:
            if isinstance(statement, Arrival):
                view.add(statement)
            else:
                view.execute(*statement)
    except Exception as error:  # noqa: BLE001  # whatever a value of the handler's does, the attempt has an outcome
        settled = msgspec.structs.replace(otherwise, error=f"staged: {error}")
    finally:
        view.end()
    if db.in_transaction:
        if settled.state == "done":
            before.update(books.entries)
        else:
            db.execute(ROLLBACK_TO)
        db.execute(RELEASE)
        books.entries = before
    elif settled.state == "done":
        settled = msgspec.structs.replace(otherwise, error="staged: a statement ended the transaction")
    return settled
