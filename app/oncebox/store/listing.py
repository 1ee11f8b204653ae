"""Listing: events by filters, newest first, a bounded piece at a time. Nothing is ever counted.

Rare things (open deliveries, a quiet source) are found by an index. All else is looked at in windows of arrival
numbers, so that a call never takes longer than its patience, however large the file is.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import Any

import msgspec

from oncebox.encoding import decode
from oncebox.store.queries import MANY, EventRow, events_by_seq
from oncebox.store.statement import own

PATIENCE = 0.2
BODY_PATIENCE = 0.15
RARE = 20_000
HOUR = 3_600_000_000
RUN = 1000
LARGEST_BODY = 64 << 20
SMALLEST, START, WIDEST = 256, 2048, 1 << 15
STATES = ("pending", "parked", "running", "done", "dead", "unrouted")
GLOB = frozenset("*?[")

NEWEST = own("select max(seq) from events")
NEWEST_ABOVE = own("select seq from events where seq > ? order by seq desc limit ?")
OLDEST = own("select min(seq) from events")
AT = own("select seq, received_at from events where seq >= ? order by seq limit 1")
LATEST_BELOW = own("select max(at) from (select received_at as at from events where seq < ? order by seq desc limit ?)")
TOTAL = own("select coalesce(sum(n), 0) from totals where minute = 0 and what = ?")
RECEIVED = own("select n from totals where minute = 0 and source = ? and what = 'received'")
OF_SOURCE = own("select seq from events where source = ? and +seq < ? order by +seq desc limit ?")
PENDING = own(
    "select seq from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 and seq < ?1 union "
    "select seq from deliveries indexed by deliveries_suspect where suspect > 0 and state = 'pending' and seq < ?1 "
    "order by 1 desc limit ?2"
)
HAS_TEXT = own("select seq, encoding, instr(body, ?) from payloads where seq = ?")
PACKED = own("select body from payloads where seq = ?")

Ahead = Callable[[int, int], list[int]]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for. `type` is a glob, `q` a part of id or type, `body` a part of the body; `before` a seq.

    `state` means: any delivery in it, or `unrouted`: none at all. Times are unix microseconds.
    """

    source: str | None = None
    type: str | None = None
    state: str | None = None
    since: int | None = None
    until: int | None = None
    q: str | None = None
    body: bytes | None = None
    before: int | None = None
    limit: int = 50


class Page(msgspec.Struct, frozen=True):
    """A piece of a list. `next`: look further below this seq, None at the end; all from `searched_to` on was seen."""

    events: list[EventRow]
    next: int | None
    searched_to: int


def newest(db: sqlite3.Connection, after: int, limit: int) -> list[int]:
    """The newest numbers above `after`, newest first."""
    return _seqs(db, NEWEST_ABOVE, after, limit)


def list_events(db: sqlite3.Connection, wanted: Selection, patience: float | None = None) -> Page:
    """The newest events that fit, as many as are asked for or as are found in about `patience` seconds."""
    limit = patience if patience is not None else PATIENCE if wanted.body is None else BODY_PATIENCE
    search = Search(db, wanted, limit)
    seqs, position = search.run()
    if len(seqs) > wanted.limit:
        seqs = seqs[: wanted.limit]
        position = seqs[-1]
    return Page(events_by_seq(db, seqs), position if position > search.oldest else None, position)


class Search:
    """One walk down the arrival numbers."""

    def __init__(self, db: sqlite3.Connection, wanted: Selection, patience: float) -> None:
        self._db = db
        self._wanted = wanted
        self._patience = patience
        self._end = time.monotonic() + patience
        self._size = START
        self.oldest = db.execute(OLDEST).fetchone()[0] or 0
        self._ahead = _index_for(db, wanted)
        where, self._values = conditions(wanted)
        window = f"where e.seq < ? and e.seq >= ?{where} order by e.seq desc"
        self._window = own(f"select e.seq from events e {window} limit ?")
        self._picked = own(f"select e.seq from events e where e.seq {MANY}{where} order by e.seq desc limit ?")
        self._texts = own(
            "select e.seq, p.encoding, instr(p.body, ?) from events e cross join payloads p on p.seq = e.seq " + window
        )

    def run(self) -> tuple[list[int], int]:
        """The numbers found (one more than asked for proves that there are more), and how far down it looked."""
        position, found = self._start(), list[int]()
        while position > self.oldest and len(found) <= self._wanted.limit:
            began = time.monotonic()
            some, position = self._step(position, self._wanted.limit + 1 - len(found))
            found += some
            now = time.monotonic()
            if now >= self._end:
                break
            if not some and self._is_too_old(position):
                return found, self.oldest
            self._fit(now - began)
        return found, position

    def _step(self, position: int, room: int) -> tuple[list[int], int]:
        """What fits in the next window, and where the one after it starts."""
        text, count = self._wanted.body, room if self._wanted.body is None else -1
        if self._ahead is not None:
            near = self._ahead(position, self._size)
            bottom = near[-1] if len(near) == self._size else self.oldest
            seqs = _seqs(self._db, self._picked, msgspec.json.encode(near).decode(), *self._values, count)
            if text is not None:
                each: Iterable[Any] = (row for seq in seqs for row in self._db.execute(HAS_TEXT, (text, seq)))
                return self._with_text(text, each, room, bottom)
        else:
            bottom = max(self.oldest, position - self._size)
            if text is not None:
                each = self._db.execute(self._texts, (text, position, bottom, *self._values))
                return self._with_text(text, each, room, bottom)
            seqs = _seqs(self._db, self._window, position, bottom, *self._values, count)
        return seqs, seqs[-1] if len(seqs) == room else bottom

    def _with_text(
        self, text: bytes, rows: Iterable[tuple[int, str | None, int]], room: int, bottom: int
    ) -> tuple[list[int], int]:
        """Bodies are looked into one by one as they are read, since a single one may take milliseconds."""
        found: list[int] = []
        for seq, encoding, place in rows:
            if place or (encoding is not None and text in self._unpacked(seq, encoding)):
                found.append(seq)
            if len(found) == room or time.monotonic() >= self._end:
                return found, seq
        return found, bottom

    def _unpacked(self, seq: int, encoding: str) -> bytes:
        """The body without its encoding, as it is if that cannot be undone."""
        body: bytes = self._db.execute(PACKED, (seq,)).fetchone()[0]
        try:
            return decode(body, encoding, LARGEST_BODY)
        except ValueError:
            return body

    def _fit(self, took: float) -> None:
        """Wider windows while they are quick, narrower ones when they are slow."""
        if took < self._patience / 8:
            self._size = min(WIDEST, self._size * 2)
        elif took > self._patience / 4:
            self._size = max(SMALLEST, self._size // 2)

    def _start(self) -> int:
        """Where to begin: below the cursor, and below what came long after `until`."""
        top: int = (self._db.execute(NEWEST).fetchone()[0] or 0) + 1
        if self._wanted.before is not None:
            top = min(top, self._wanted.before)
        if self._wanted.until is not None:
            top = min(top, self._first_after(self._wanted.until + HOUR, top))
        return top

    def _first_after(self, at: int, top: int) -> int:
        """By halves, since times grow with the numbers; an hour's margin forgives a clock that was set back."""
        low, high = self.oldest, top
        while high - low > RUN:
            middle = (low + high) // 2
            row = self._db.execute(AT, (middle,)).fetchone()
            if row is None or row[1] > at:
                high = middle
            else:
                low = middle
        return high

    def _is_too_old(self, position: int) -> bool:
        """Did the next thousand events all come long before `since`? Then nothing below is looked at."""
        if self._wanted.since is None:
            return False
        latest = self._db.execute(LATEST_BELOW, (position, RUN)).fetchone()[0]
        return latest is None or latest < self._wanted.since - HOUR


def conditions(wanted: Selection) -> tuple[str, list[object]]:
    """The filters but for the body's: SQL from constants only, and the values. `+` keeps to the arrival numbers."""
    parts: list[tuple[str, tuple[object, ...]]] = []
    if wanted.source is not None:
        parts.append(("+e.source = ?", (wanted.source,)))
    if wanted.type is not None and wanted.type != "*":
        parts.append(("e.type glob ?" if GLOB & set(wanted.type) else "e.type = ?", (_sqlite_glob(wanted.type),)))
    if wanted.since is not None:
        parts.append(("e.received_at >= ?", (wanted.since,)))
    if wanted.until is not None:
        parts.append(("e.received_at <= ?", (wanted.until,)))
    if wanted.q is not None:
        pattern = _like(wanted.q)
        parts.append((r"(e.id like ? escape '\' or e.type like ? escape '\')", (pattern, pattern)))
    if wanted.state == "unrouted":
        parts.append(("not exists (select 1 from deliveries d where d.seq = e.seq)", ()))
    elif wanted.state is not None:
        state = "exists (select 1 from deliveries d where d.seq = e.seq and d.state = ?)"
        parts.append((state, (wanted.state,)))
    return "".join(f" and {sql}" for sql, _ in parts), [value for _, values in parts for value in values]


def _sqlite_glob(pattern: str) -> str:
    """Routes negate a set by `!`, SQLite by `^`."""
    return pattern.replace("[!", "[^")


def _like(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _index_for(db: sqlite3.Connection, wanted: Selection) -> Ahead | None:
    """A way to jump from candidate to candidate, where an index knows them; None: look at every number."""
    found = _by_state(db, wanted.state) if wanted.state is not None else None
    if found is not None or wanted.source is None:
        return found
    received = db.execute(RECEIVED, (wanted.source,)).fetchone()
    if received is None:
        return _none
    if received[0] <= RARE:
        return lambda position, count: _seqs(db, OF_SOURCE, wanted.source, position, count)
    return None


def _by_state(db: sqlite3.Connection, state: str) -> Ahead | None:
    total = db.execute(TOTAL, (state,)).fetchone()[0]
    if total <= 0:
        return _none
    if state in ("parked", "running", "dead"):
        return _open_deliveries(db, state)
    if state == "pending" and total <= RARE:
        return lambda position, count: _seqs(db, PENDING, position, count)
    return None


def _none(_position: int, _count: int) -> list[int]:
    return []


def _open_deliveries(db: sqlite3.Connection, state: str) -> Ahead:
    """By the index of open deliveries, which has each target's numbers in order."""
    # SQLite takes the index only if its whole condition stands in the query.
    where = f"state in ('parked', 'running', 'dead') and state = '{state}'"
    index = f"from deliveries indexed by deliveries_open where {where}"
    one = own(f"select seq {index} and target = ? and seq < ? order by seq desc limit ?")
    targets = _targets(db, index)

    def ahead(position: int, count: int) -> list[int]:
        each = [_seqs(db, one, target, position, count) for target in targets]
        unique = dict.fromkeys(merge(*each, reverse=True))
        return list(islice(unique, count))

    return ahead


def _targets(db: sqlite3.Connection, index: str) -> list[str]:
    """The targets in an index, found by jumping from one to the next."""
    following = own(f"select target {index} and target > ? order by target limit 1")
    targets: list[str] = []
    row = db.execute(following, ("",)).fetchone()
    while row is not None:
        targets.append(row[0])
        row = db.execute(following, row).fetchone()
    return targets


def _seqs(db: sqlite3.Connection, sql: str, *values: object) -> list[int]:
    return [row[0] for row in db.execute(sql, values)]
