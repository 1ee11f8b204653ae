"""Waits: when a clock is set back, what waits for a time that was near would wait for one that is far."""

from __future__ import annotations

import sqlite3

from oncebox.store.statement import own

NEWEST = own("select received_at from events order by seq desc limit 1")
PENDING = own(
    "update deliveries indexed by deliveries_due set due = due - ? where state = 'pending' and suspect = 0 and due > ?"
)
SUSPECTS = own(
    "update deliveries indexed by deliveries_suspect set due = due - ? "
    "where suspect > 0 and state = 'pending' and due > ?"
)


def bring_forward(db: sqlite3.Connection, by: int, now: int) -> int:
    """What is due after `now` is due so many microseconds earlier; how many deliveries that are."""
    return sum(db.execute(statement, (by, now)).rowcount for statement in (PENDING, SUSPECTS))


def bring_forward_from(db: sqlite3.Connection, now: int) -> int:
    """The same where the newest event came after `now`: by how much the clock has been set back at least, or 0."""
    row = db.execute(NEWEST).fetchone()
    by = 0 if row is None else max(0, row[0] - now)
    if by:
        bring_forward(db, by, now)
    return by
