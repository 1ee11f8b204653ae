"""Settles: how attempts ended is written down, for the current attempt only, and the next in order gets its turn."""

from __future__ import annotations

import sqlite3

from oncebox.model import Settled
from oncebox.store.books import Books
from oncebox.store.statement import own

SETTLE = own(
    "update deliveries set state = ?, outcome = ?, error = ?, duration = ?, due = ?, failures = ?, processed_at = ?, "
    "suspect = 0, alone = 0, boot = null "
    "where seq = ? and target = ? and run = ? and attempts = ? and state = 'running' returning source, order_key"
)
RECORD = own(
    "insert or replace into attempts (seq, target, run, number, started_at, duration, outcome, detail) "
    "values (?, ?, ?, ?, ?, ?, ?, ?)"
)
PROMOTE = own(
    "update deliveries set state = 'pending', due = ? where target = ? and state = 'parked' and seq = "
    "(select seq from deliveries where target = ? and order_key = ? and order_key is not null and state <> 'done' "
    "order by seq limit 1) returning source"
)
OPEN = own("select state from deliveries where seq = ? and target = ? and run = ? and attempts = ?")


def settle(db: sqlite3.Connection, settled: Settled, books: Books) -> bool:
    """Write the end of an attempt. False when it is not the current one any more: a late result changes nothing."""
    ended = settled.now if settled.state in ("done", "dead") else None
    row = db.execute(
        SETTLE,
        (
            settled.state,
            settled.outcome,
            settled.error,
            settled.duration,
            settled.due,
            settled.failures,
            ended,
            settled.seq,
            settled.target,
            settled.run,
            settled.attempt,
        ),
    ).fetchone()
    if row is None:
        return False
    source, order_key = row
    books.entries.moved(source, "running", settled.state, settled.now)
    if settled.outcome != "ok":
        _record(db, settled)
    if settled.state == "done" and order_key is not None:
        promote(db, settled.target, order_key, settled.now, books)
    return True


def current(db: sqlite3.Connection, settled: Settled) -> bool:
    """Is this still the attempt that is running?"""
    row = db.execute(OPEN, (settled.seq, settled.target, settled.run, settled.attempt)).fetchone()
    return row is not None and row[0] == "running"


def promote(db: sqlite3.Connection, target: str, order_key: str, now: int, books: Books) -> None:
    """The first unfinished delivery of a key, if it waits for its turn, has it now."""
    row = db.execute(PROMOTE, (now, target, target, order_key)).fetchone()
    if row is not None:
        books.entries.moved(row[0], "parked", "pending", now)


def _record(db: sqlite3.Connection, settled: Settled) -> None:
    """Attempts that failed are kept one by one; the one that succeeded is in the delivery itself."""
    db.execute(
        RECORD,
        (
            settled.seq,
            settled.target,
            settled.run,
            settled.attempt,
            settled.started_at,
            settled.duration,
            settled.outcome,
            settled.error,
        ),
    )
