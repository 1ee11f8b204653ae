"""Figures: what the totals say, for the overview. Counted when things happen, never when somebody looks."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable

import msgspec

from oncebox.store.books import MINUTE
from oncebox.store.statement import own

DELIVERY_STATES = ("pending", "parked", "running", "done", "dead", "unrouted")
PATIENCE = 0.1
DAY = 1440
FEW = 5000

TOTALS = own("select source, what, n from totals where minute = 0")
MINUTES = own(
    "select minute, what, sum(n) from totals where minute between ? and ? "
    "and what in ('received', 'replays', 'done', 'dead') group by minute, what"
)
TOP = own("select coalesce(max(seq), 0) from events")
LAST_IN = own("select source, max(received_at) from events where seq <= ? and seq > ? group by source")
LAST_MINUTES = own(
    "select source, max(minute) from totals where minute between ? and ? and what = 'received' group by source"
)
LAST_OF = own("select max(received_at) from events where source = ?")
FIRST_MINUTE = own("select min(minute) from totals where minute > 0")
NEXT_LINE = own(
    "select target, lane, source, due from deliveries indexed by deliveries_due "
    "where state = 'pending' and suspect = 0 and (target, lane, source) > (?, ?, ?) "
    "order by target, lane, source, due limit 1"
)
SUSPECT_DUE = own("select min(due) from deliveries where suspect > 0 and state = 'pending'")


class SourceFigures(msgspec.Struct):
    """What one source has sent. `last_at` is exact for the newest events, else the minute."""

    received: int = 0
    replays: int = 0
    refused: dict[str, int] = {}
    last_at: int | None = None


class Figures(msgspec.Struct, frozen=True):
    """All totals; `minutes` are (unix minute, received, replays, done, dead), the file's sizes are in bytes."""

    events: int
    by_state: dict[str, int]
    sources: dict[str, SourceFigures]
    oldest_due_at: int | None
    minutes: list[tuple[int, int, int, int, int]]
    db_bytes: int
    free_bytes: int


class Totals(msgspec.Struct, frozen=True):
    """The totals alone: what can be read many times a second."""

    events: int
    by_state: dict[str, int]
    sources: dict[str, SourceFigures]
    oldest_due_at: int | None


def totals(db: sqlite3.Connection) -> Totals:
    """The totals now; when a source last sent something is not among them."""
    by_state, sources = _totals(db, {})
    return Totals(
        sum(one.received for one in sources.values()), by_state, dict(sorted(sources.items())), oldest_due(db)
    )


def _totals(db: sqlite3.Connection, found: dict[str, SourceFigures]) -> tuple[dict[str, int], dict[str, SourceFigures]]:
    by_state = dict.fromkeys(DELIVERY_STATES, 0)
    for source, what, n in db.execute(TOTALS):
        if what in by_state:
            by_state[what] += n
        else:
            _add(found.setdefault(source, SourceFigures()), what, n)
    return by_state, found


def figures(db: sqlite3.Connection, now: int, minutes: int = 60, sources: Iterable[str] = ()) -> Figures:
    """The totals now (unix microseconds) and the last so many minutes; `sources` are named even without events."""
    by_state, found = _totals(db, {name: SourceFigures() for name in sources})
    _add_last(db, found, now)
    page_size = db.execute("pragma page_size").fetchone()[0]
    return Figures(
        events=sum(one.received for one in found.values()),
        by_state=by_state,
        sources=dict(sorted(found.items())),
        oldest_due_at=oldest_due(db),
        minutes=by_minute(db, now, minutes),
        db_bytes=db.execute("pragma page_count").fetchone()[0] * page_size,
        free_bytes=db.execute("pragma freelist_count").fetchone()[0] * page_size,
    )


def _add(one: SourceFigures, what: str, n: int) -> None:
    if what == "received":
        one.received = n
    elif what == "replays":
        one.replays = n
    elif what.startswith("refused:"):
        one.refused[what.removeprefix("refused:")] = n


def _add_last(db: sqlite3.Connection, found: dict[str, SourceFigures], now: int) -> None:
    """When each source last sent something: from the newest events, its own, then the minutes, as patience lasts."""
    end = time.monotonic() + PATIENCE
    _from_newest(db, found)
    for name, one in found.items():
        if one.last_at is None and 0 < one.received <= FEW and time.monotonic() < end:
            one.last_at = db.execute(LAST_OF, (name,)).fetchone()[0]
    minute, first = now // MINUTE + DAY, db.execute(FIRST_MINUTE).fetchone()[0] or 0
    while _unseen(found) and minute >= first and time.monotonic() < end:
        for source, last in db.execute(LAST_MINUTES, (max(1, minute - DAY), minute)):
            if source in found and found[source].last_at is None:
                found[source].last_at = last * MINUTE
        minute -= DAY + 1


def _from_newest(db: sqlite3.Connection, found: dict[str, SourceFigures]) -> None:
    top, size = db.execute(TOP).fetchone()[0], 1000
    while _unseen(found) and top > 0 and size <= 16_000:
        for source, at in db.execute(LAST_IN, (top, top - size)):
            if source in found and found[source].last_at is None:
                found[source].last_at = at
        top, size = top - size, size * 2


def _unseen(found: dict[str, SourceFigures]) -> bool:
    return any(one.received and one.last_at is None for one in found.values())


def oldest_due(db: sqlite3.Connection) -> int | None:
    """When the pending delivery that is due first is, or was, due."""
    dues = [due for (due,) in db.execute(SUSPECT_DUE) if due is not None]
    row = db.execute(NEXT_LINE, ("", -1, "")).fetchone()
    while row is not None:
        dues.append(row[3])
        row = db.execute(NEXT_LINE, row[:3]).fetchone()
    return min(dues, default=None)


def by_minute(db: sqlite3.Connection, now: int, count: int) -> list[tuple[int, int, int, int, int]]:
    """The last `count` minutes, oldest first, those without anything too."""
    last = now // MINUTE
    n: dict[tuple[int, str], int] = {}
    for minute, what, total in db.execute(MINUTES, (last - count + 1, last)):
        n[minute, what] = total
    return [
        (
            minute,
            n.get((minute, "received"), 0),
            n.get((minute, "replays"), 0),
            n.get((minute, "done"), 0),
            n.get((minute, "dead"), 0),
        )
        for minute in range(last - count + 1, last + 1)
    ]
