"""Settlement: a person says that deliveries which wait have been made elsewhere, or never will be; nothing is sent."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from oncebox.store.books import Books
from oncebox.store.settles import end
from oncebox.store.statement import own

STEP = 500

PARKED = own(
    "select seq, source, state, order_key, rerun from deliveries indexed by deliveries_open "
    "where state in ('parked', 'running', 'dead') and state = 'parked' and target = ? and due < ? "
    "order by seq limit ?"
)
SUSPECTS = own(
    "select seq, source, state, order_key, rerun from deliveries indexed by deliveries_suspect "
    "where suspect > 0 and state = 'pending' and due < ? and target = ? limit ?"
)
NEXT_SOURCE = own(
    "select source from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = ? and source > ? order by source limit 1"
)
PENDING = own(
    "select seq, source, state, order_key, rerun from deliveries indexed by deliveries_due "
    "where state = 'pending' and suspect = 0 and target = ? and lane = ? and source = ? and due < ? "
    "order by due, seq limit ?"
)
SETTLE = own(
    "update deliveries set state = ?, error = ?, outcome = null, duration = null, processed_at = ?, suspect = 0, "
    "alone = 0, boot = null where seq = ? and target = ?"
)


class Settlement(msgspec.Struct, frozen=True):
    """Deliveries to one target that were due before a time (unix microseconds) are `state`: done or dead."""

    target: str
    before: int
    state: str
    why: str


class Waiting(msgspec.Struct, frozen=True):
    """A delivery that waits."""

    seq: int
    source: str
    state: str
    order_key: str | None
    rerun: int | None


def settle_some(
    db: sqlite3.Connection, wanted: Settlement, now: int, books: Books, skipping: frozenset[str] = frozenset()
) -> int:
    """Settle the next five hundred at most; how many they were. Those that run now are left to end.

    Those that wait for their turn go first: freed by the ones before them, they would be due now and not before.
    """
    found = waiting(db, wanted.target, wanted.before, STEP)
    for one in found:
        db.execute(SETTLE, (wanted.state, wanted.why, now, one.seq, wanted.target))
        books.entries.moved(one.source, one.state, wanted.state, now)
    for one in found:
        skips = wanted.target in skipping
        end(db, wanted.target, wanted.state, one.order_key, one.rerun, now, books, skips=skips)
    return len(found)


def count_waiting(db: sqlite3.Connection, target: str, before: int, most: int) -> int:
    """How many would be settled, counted up to `most`."""
    return len(waiting(db, target, before, most))


def waiting(db: sqlite3.Connection, target: str, before: int, limit: int) -> list[Waiting]:
    """What was due before a time and has not been made: parked, then suspects, then the rest."""
    rows = db.execute(PARKED, (target, before, limit)).fetchall()
    if len(rows) < limit:
        rows += db.execute(SUSPECTS, (before, target, limit - len(rows))).fetchall()
    for lane, source in _lines(db, target):
        if len(rows) >= limit:
            break
        rows += db.execute(PENDING, (target, lane, source, before, limit - len(rows))).fetchall()
    return [Waiting(*row) for row in rows]


def _lines(db: sqlite3.Connection, target: str) -> Iterator[Sequence[object]]:
    """Lanes and sources with something pending."""
    for lane in (0, 1):
        row = db.execute(NEXT_SOURCE, (target, lane, "")).fetchone()
        while row is not None:
            yield lane, row[0]
            row = db.execute(NEXT_SOURCE, (target, lane, row[0])).fetchone()
