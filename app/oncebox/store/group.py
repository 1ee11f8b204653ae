"""Group: rows of several kinds for one statement, as the view `arriving` takes them."""

from __future__ import annotations

import sqlite3

from oncebox.store.statement import BEGIN, COMMIT, rounded, rows

EVENT, DELIVERY, TOTAL, NUMBER = 1, 2, 3, 4
COLUMNS = 15
# A statement is kept with all that it was prepared from, 1.3 KB a row; one is prepared for each size.
ROWS = 576
# A statement that is kept holds what was bound last: bodies of more bytes than these are let go of.
HEAVY = 1 << 20

HEAD = (
    "insert into arriving (kind, source, id, seq, type, at, size, body_hash, verified, parent, reply, headers, "
    "content_type, encoding, body)"
)


def arriving(count: int) -> str:
    """The statement that writes so many rows."""
    return rows(HEAD, COLUMNS, count)


def commit(db: sqlite3.Connection, values: list[object], size: int) -> None:
    """Write rows with bodies of so many bytes, all or nothing. What fails is the caller's to roll back."""
    if len(values) <= ROWS * COLUMNS and size <= HEAVY:
        db.execute(_padded(values), values)
        return
    db.execute(BEGIN)
    put(db, values)
    if size > HEAVY:
        _forget(db, len(values) // COLUMNS)
    db.execute(COMMIT)


def put(db: sqlite3.Connection, values: list[object]) -> None:
    """Write rows inside a transaction of the caller's."""
    for start in range(0, len(values), ROWS * COLUMNS):
        some = values[start : start + ROWS * COLUMNS]
        db.execute(_padded(some), some)


def _forget(db: sqlite3.Connection, count: int) -> None:
    """Bind nothing to the statements that so many rows were written with."""
    for size in {rounded(min(ROWS, count - start)) for start in range(0, count, ROWS)}:
        db.execute(arriving(size), nothing(size))


def nothing(count: int) -> list[object]:
    """So many rows of no kind, which write nothing."""
    return [0, *(None,) * (COLUMNS - 1)] * count


def _padded(values: list[object]) -> str:
    """The statement for these rows, rows of no kind added to a round count: few statements, each prepared once."""
    count = len(values) // COLUMNS
    values += nothing(rounded(count) - count)
    return arriving(len(values) // COLUMNS)
