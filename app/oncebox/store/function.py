"""Function: a function of others, run in one transaction of its own: set-up of handlers, writes of a host."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from oncebox.store import Transaction
from oncebox.store.books import Books
from oncebox.store.busy import Busy
from oncebox.store.jobs import Broken
from oncebox.store.statement import BEGIN, COMMIT
from oncebox.store.transaction import HandlerTransaction

T = TypeVar("T")

BROKEN = "the function's SQL ended the transaction (such as by `insert or rollback`); nothing of it was kept"


def run_function(
    db: sqlite3.Connection,
    work: Callable[[Transaction], T],
    view: Callable[[], HandlerTransaction],
    books: Books,
    busy: Busy,
    tell: Callable[[set[str]], None],
) -> T:
    """Run it and commit what it wrote and emitted; what it raises is raised, and whoever called rolls back."""
    db.execute(BEGIN)
    opened = view()
    busy.begin("function", name=getattr(work, "__qualname__", "?"))
    try:
        result = work(opened)
    finally:
        busy.end()
        opened.end()
    if opened.refused is not None:
        raise opened.refused
    if not db.in_transaction:
        raise Broken(BROKEN)
    books.save(db)
    db.execute(COMMIT)
    tell(opened.targets)
    return result
