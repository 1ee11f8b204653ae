"""Minutes: the counts by the minute, of which the newest are kept; what is counted over all stays."""

from __future__ import annotations

import sqlite3

from oncebox.store.statement import own

# Of one source about a month, of fifty about two days; the charts show the last day.
KEPT = 500_000
PIECE = 500

OLD = own("select minute from totals where minute > 0 order by minute desc limit 1 offset ?")
FORGET = own(
    "delete from totals where (minute, source, what) in "
    "(select minute, source, what from totals where minute > 0 and minute <= ? order by minute limit ?)"
)


def forget_old(db: sqlite3.Connection, kept: int = KEPT) -> bool:
    """Delete a piece of the oldest minutes beyond so many rows; is there more?"""
    row = db.execute(OLD, (kept,)).fetchone()
    return row is not None and db.execute(FORGET, (row[0], PIECE)).rowcount == PIECE
