"""Callbook: the calls of operations as people look through them."""

from __future__ import annotations

import sqlite3
import time

import msgspec

from oncebox.model import Result
from oncebox.store.operations import COLUMNS, Known
from oncebox.store.statement import own

STATES = ("running", "interrupted", "failed", "unknown", "done")
# Few are in them, and an index has all of these.
OPEN = ("running", "unknown")

PATIENCE = 0.15
WINDOW = 4096

NEWEST, OLDEST = own("select max(rowid) from operations"), own("select min(rowid) from operations")
_FITS = "(?1 is null or operation = ?1) and (?2 is null or +caller = ?2) and rowid < ?3"
_OPEN = own(
    f"select {COLUMNS} from operations where state in ('running', 'unknown') and state = ?4 and {_FITS} "
    "order by rowid desc limit ?5"
)
_ANY = own(
    f"select {COLUMNS} from operations where (?4 is null or state = ?4) and {_FITS} and rowid >= ?6 "
    "order by rowid desc limit ?5"
)
_ONE = own(f"select {COLUMNS} from operations where rowid = ?")
_REPLY = own("select status, headers, body from operations where rowid = ? and status is not null")
_COUNTED = own("select state, count(*) from operations where state in ('running', 'unknown') group by state")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls: those that fit, with numbers below `before`."""

    limit: int
    before: int
    state: str | None = None
    operation: str | None = None
    caller: str | None = None


class Calls(msgspec.Struct, frozen=True):
    """The newest of them; `next` is where the list goes on."""

    calls: list[Known]
    next: int | None = None


def list_calls(db: sqlite3.Connection, wanted: Wanted) -> Calls:
    """The newest calls that fit: as many as are asked for, or as are found in a moment."""
    oldest, newest = (db.execute(end).fetchone()[0] for end in (OLDEST, NEWEST))
    if oldest is None:
        return Calls([])
    room, fits = wanted.limit + 1, (wanted.operation, wanted.caller)
    found: list[Known] = []
    if wanted.state in OPEN:
        rows = db.execute(_OPEN, (*fits, wanted.before, wanted.state, room))
        return _page([Known(*row) for row in rows], wanted.limit)
    top, until = min(wanted.before, newest + 1), time.monotonic() + PATIENCE
    while top > oldest and len(found) < room and time.monotonic() < until:
        bottom = max(oldest, top - WINDOW)
        rows = db.execute(_ANY, (*fits, top, wanted.state, room - len(found), bottom))
        found += [Known(*row) for row in rows]
        top = bottom
    return _page(found, wanted.limit, top if top > oldest else None)


def _page(found: list[Known], limit: int, looked: int | None = None) -> Calls:
    return Calls(found[:limit], found[limit - 1].n) if len(found) > limit else Calls(found, looked)


def call_of(db: sqlite3.Connection, n: int) -> Known | None:
    """The call of this number."""
    row = db.execute(_ONE, (n,)).fetchone()
    return Known(*row) if row else None


def reply_of(db: sqlite3.Connection, n: int) -> Result | None:
    """What is answered to each repeat of this call; None as long as there is no such answer."""
    row = db.execute(_REPLY, (n,)).fetchone()
    if row is None:
        return None
    status, headers, body = row
    return Result(status, msgspec.json.decode(headers, type=tuple[tuple[str, str], ...]), body)


def open_calls(db: sqlite3.Connection) -> dict[str, int]:
    """How many run, and of how many nobody knows how they ended."""
    return dict.fromkeys(OPEN, 0) | dict(db.execute(_COUNTED).fetchall())
