"""Settles: how attempts ended is written down, for the current attempt only, and the next in order gets its turn."""

from __future__ import annotations

import sqlite3

from oncebox.model import Settled
from oncebox.store.books import Books
from oncebox.store.reruns import count_ended
from oncebox.store.statement import own

SETTLE = own(
    "update deliveries set state = ?, outcome = ?, error = ?, duration = ?, due = ?, failures = ?, processed_at = ?, "
    "suspect = 0, alone = 0, boot = null "
    "where seq = ? and target = ? and run = ? and attempts = ? and state = 'running' returning source, order_key, rerun"
)
RECORD = own(
    "insert or replace into attempts (seq, target, run, number, started_at, duration, outcome, detail) "
    "values (?, ?, ?, ?, ?, ?, ?, ?)"
)
PROMOTE = own(
    "update deliveries set state = 'pending', due = ? where target = ? and state = 'parked' and seq = "
    "(select seq from deliveries where target = ? and order_key = ? and order_key is not null and state <> 'done' "
    "and state <> ? order by seq limit 1) and not exists (select 1 from deliveries indexed by deliveries_flying where "
    "order_key is not null and state in ('pending', 'running') and target = ? and order_key = ?) returning source"
)
DEAD_KEYS = own(
    "select distinct order_key from deliveries indexed by deliveries_open where state in ('parked', 'running', 'dead') "
    "and state = 'dead' and target = ? and order_key is not null"
)
NOBODY: frozenset[str] = frozenset()
OPEN = own("select state from deliveries where seq = ? and target = ? and run = ? and attempts = ?")


def settle(db: sqlite3.Connection, settled: Settled, books: Books, skipping: frozenset[str] = NOBODY) -> bool:
    """Write the end of an attempt. False when it is not the current one any more: a late result changes nothing. A
    dead one holds up those behind it in order, unless its target is one of `skipping`."""
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
    source, order_key, rerun = row
    books.entries.moved(source, "running", settled.state, settled.now)
    if settled.outcome != "ok":
        _record(db, settled)
    if ended is not None:
        skips = settled.target in skipping
        end(db, settled.target, settled.state, order_key, rerun, settled.now, books, skips=skips)
    return True


def end(
    db: sqlite3.Connection,
    target: str,
    state: str,
    order_key: str | None,
    rerun: int | None,
    now: int,
    books: Books,
    *,
    skips: bool = False,
) -> None:
    """What follows when a delivery is done or dead. After a dead one, too, the key's first may be another: an earlier
    event that is run again."""
    if order_key is not None:
        promote(db, target, order_key, now, books, skips=skips)
    if rerun is not None:
        count_ended(db, rerun, state, now)


def pass_dead(db: sqlite3.Connection, skipping: frozenset[str], now: int, books: Books) -> None:
    """Those that wait behind a dead one, of targets that skip it since lately, have their turn."""
    for target in skipping:
        for (order_key,) in db.execute(DEAD_KEYS, (target,)).fetchall():
            promote(db, target, order_key, now, books, skips=True)


def current(db: sqlite3.Connection, settled: Settled) -> bool:
    """Is this still the attempt that is running?"""
    row = db.execute(OPEN, (settled.seq, settled.target, settled.run, settled.attempt)).fetchone()
    return row is not None and row[0] == "running"


def promote(
    db: sqlite3.Connection, target: str, order_key: str, now: int, books: Books, *, skips: bool = False
) -> None:
    """The first unfinished delivery of a key, if it waits for its turn and nothing of the key is in flight, has it now:
    one that is run again may wait for a later one."""
    passed = "dead" if skips else "done"
    row = db.execute(PROMOTE, (now, target, target, order_key, passed, target, order_key)).fetchone()
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
