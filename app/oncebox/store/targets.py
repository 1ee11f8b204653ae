"""Targets: what waits for each, and what is dead there; counted by the partial indexes, up to a bound."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from oncebox.store.figures import NEXT_LINE
from oncebox.store.statement import own

MOST = 20_000

PENDING = own(
    "select count(*) from (select 1 from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? limit ?)"
)
OPEN = (
    "select {} from deliveries indexed by deliveries_open where state in ('parked', 'running', 'dead') and state = '{}'"
)
COUNTED = {
    state: own(f"select count(*) from ({OPEN.format('1', state)} and target = ? limit ?)")
    for state in ("parked", "running", "dead")
}
NAMED = {
    state: own(f"{OPEN.format('target', state)} and target > ? order by target limit 1")
    for state in ("parked", "running", "dead")
}
PAUSED = own("select target, why, at from paused")


class TargetFigures(msgspec.Struct):
    """How much there is for one target; `counted_all` is false where it was more than is counted."""

    name: str
    pending: int = 0
    parked: int = 0
    running: int = 0
    dead: int = 0
    oldest_due: int | None = None
    counted_all: bool = True


def target_figures(db: sqlite3.Connection, names: Iterable[str]) -> list[TargetFigures]:
    """The figures of these targets and of all that unfinished deliveries name."""
    due = _oldest_due(db)
    every = sorted({*names, *due, *_named(db)})
    return [_figures(db, name, due.get(name)) for name in every]


def pauses(db: sqlite3.Connection) -> dict[str, tuple[str, int]]:
    """Paused targets: why, and since when."""
    return {target: (why, at) for target, why, at in db.execute(PAUSED)}


def _figures(db: sqlite3.Connection, name: str, oldest_due: int | None) -> TargetFigures:
    (pending,) = db.execute(PENDING, (name, MOST)).fetchone()
    counts = {state: db.execute(sql, (name, MOST)).fetchone()[0] for state, sql in COUNTED.items()}
    all_of_them = max(pending, *counts.values()) < MOST
    return TargetFigures(name, pending, **counts, oldest_due=oldest_due, counted_all=all_of_them)


def _oldest_due(db: sqlite3.Connection) -> dict[str, int]:
    """When the first delivery of each target is due, by jumping from line to line."""
    found: dict[str, int] = {}
    row = db.execute(NEXT_LINE, ("", -1, "")).fetchone()
    while row is not None:
        found[row[0]] = min(row[3], found.get(row[0], row[3]))
        row = db.execute(NEXT_LINE, row[:3]).fetchone()
    return found


def _named(db: sqlite3.Connection) -> set[str]:
    names: set[str] = set()
    for sql in NAMED.values():
        row = db.execute(sql, ("",)).fetchone()
        while row is not None:
            names.add(row[0])
            row = db.execute(sql, row).fetchone()
    return names
