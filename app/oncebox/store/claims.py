"""Claims: due deliveries become running attempts, on disk before they start; the sources of a target take turns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from oncebox.encoding import decode
from oncebox.model import Claimed, Event, event_headers
from oncebox.store import Share
from oncebox.store.books import Books
from oncebox.store.routing import Routing
from oncebox.store.settles import end
from oncebox.store.statement import filled, members, own

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

NEXT_SOURCE = own(
    "select source from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = ? and source > ? order by source limit 1"
)
COLUMNS = (
    "d.seq, d.target, d.source, d.run, d.attempts, d.failures, d.suspect, e.id, e.type, e.received_at, e.parent, "
    "p.headers, p.content_type, p.encoding, p.body, (select r.again from reruns r where r.id = d.rerun), d.lane"
)
JOINS = "cross join events e on e.seq = d.seq left join payloads p on p.seq = d.seq"
DUE = own(
    f"select {COLUMNS} from deliveries d indexed by deliveries_due {JOINS} where d.state = 'pending' and d.suspect = 0 "
    "and d.target = ? and d.lane = ? and d.source = ? and d.due between ? and ? order by d.due, d.seq limit ?"
)
SUSPECT = f"select {COLUMNS} from deliveries d indexed by deliveries_suspect {JOINS}"
SUSPECT_TAIL = "and d.suspect > 0 and d.state = 'pending' and d.due <= ? order by d.due, d.seq limit 1"
START = (
    "update deliveries set state = 'running', attempts = attempts + 1, boot = ?, started_at = ?, alone = ? "
    "where target = ? and seq in"
)
GIVE_BACK = own(
    "update deliveries set state = 'pending', attempts = attempts - 1, boot = null, alone = 0 "
    "where seq = ? and target = ? and run = ? and attempts = ? and state = 'running'"
)
PUT_OFF = own(
    "update deliveries set state = 'pending', attempts = attempts - 1, boot = null, alone = 0, due = ? "
    "where seq = ? and target = ? and run = ? and attempts = ? and state = 'running'"
)
HASTEN = (
    "update deliveries set due = min(due, (select received_at from events e where e.seq = deliveries.seq)) "
    "where state = 'pending' and target = ? and seq in"
)
FIRST = own(
    "select due from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = ? and source = ? order by due limit 1"
)
FIRST_SUSPECT = "select min(due) from deliveries where state = 'pending' and target in"
SET_ASIDE = own(
    "update deliveries set state = 'dead', outcome = 'error', error = ?, processed_at = ? where seq = ? and target = ? "
    "returning order_key, rerun"
)

GONE = "the body is gone: it was pruned or erased before this delivery was made"

Row = tuple[Any, ...]


class Gone(ValueError):
    """Nothing is left of an event but its row."""


def unreadable(error: Exception) -> str:
    """Why a stored event cannot be delivered."""
    return str(error) if isinstance(error, Gone) else f"the stored event cannot be read: {error}"


class Claims:
    """Takes what is due of a target. Remembers which source came last, so that the next one begins."""

    def __init__(self, boot: str, instance: str, routing: Routing) -> None:
        self.boot = boot
        self.instance = instance
        self._routing = routing
        self._last: dict[tuple[str, int], str] = {}

    def take(
        self,
        db: sqlite3.Connection,
        target: str,
        limit: int,
        now: int,
        books: Books,
        since: int = 0,
        share: Share | None = None,
    ) -> list[Claimed]:
        """Up to `limit` due deliveries of a target, marked as running; live ones before reruns. With `since` only live
        ones that are due since then; of each source no more than its `share`."""
        found: list[Row] = []
        for lane in (0,) if since else (0, 1):
            if len(found) < limit:
                some, share = self._due(db, target, lane, limit - len(found), since, now, share)
                found += some
        return self._start(db, found, now, books, alone=False)

    def take_suspect(self, db: sqlite3.Connection, targets: Sequence[str], now: int, books: Books) -> Claimed | None:
        """The oldest due delivery that a dead process left running, to be run alone."""
        if not targets:
            return None
        sql = members(f"{SUSPECT} where d.target in", len(targets), SUSPECT_TAIL)
        claimed = self._start(db, db.execute(sql, [*targets, now]).fetchall(), now, books, alone=True)
        return claimed[0] if claimed else None

    def next_due(self, db: sqlite3.Connection, targets: Sequence[str], share: Share | None = None) -> int | None:
        """The earliest due time of what is pending for these targets, and has a share."""
        if not targets:
            return None
        dues = [self._first_due(db, target, lane, share) for target in targets for lane in (0, 1)]
        suspect = db.execute(members(FIRST_SUSPECT, len(targets), "and suspect > 0"), list(targets)).fetchone()
        return min((due for due in (*dues, suspect[0]) if due is not None), default=None)

    def _first_due(self, db: sqlite3.Connection, target: str, lane: int, share: Share | None) -> int | None:
        turn = self._turn(db, target, lane, share)
        firsts = [db.execute(FIRST, (target, lane, source)).fetchone() for source in turn]
        return min((row[0] for row in firsts if row is not None), default=None)

    def _due(
        self,
        db: sqlite3.Connection,
        target: str,
        lane: int,
        limit: int,
        since: int,
        now: int,
        share: Share | None,
    ) -> tuple[list[Row], Share | None]:
        """Each source gets an equal part of the room, and what one leaves goes to the next; the share that is left."""
        found: list[Row] = []
        turn = self._turn(db, target, lane, share)
        for position, source in enumerate(turn):
            room = limit - len(found)
            if room <= 0:
                break
            part = max(1, room // (len(turn) - position))
            if share is not None:
                part = min(part, share.most(source, history=lane > 0))
            rows = db.execute(DUE, (target, lane, source, since, now, part)).fetchall() if part else ()
            if rows:
                self._last[target, lane] = source
                found += rows
                share = None if share is None else share.took(source, len(rows), history=lane > 0)
        return found, share

    def _turn(self, db: sqlite3.Connection, target: str, lane: int, share: Share | None) -> list[str]:
        """The sources that have something pending and a share, the one after the last served first."""
        sources: list[str] = []
        after = ""
        while (row := db.execute(NEXT_SOURCE, (target, lane, after)).fetchone()) is not None:
            after = row[0]
            if share is None or share.most(after, history=lane > 0) > 0:
                sources.append(after)
        last = self._last.get((target, lane), "")
        return [s for s in sources if s > last] + [s for s in sources if s <= last]

    def _start(
        self, db: sqlite3.Connection, found: Sequence[Row], now: int, books: Books, *, alone: bool
    ) -> list[Claimed]:
        by_target: dict[str, list[object]] = {}
        started: list[Claimed] = []
        for row in found:
            try:
                started.append(claimed(row, self.instance))
            except (ValueError, msgspec.MsgspecError) as error:
                why = unreadable(error)
                _set_aside(db, row, why, now, books, self._routing.skipping)
                continue
            by_target.setdefault(row[1], []).append(row[0])
            books.entries.moved(row[2], "pending", "running", now)
        for target, seqs in by_target.items():
            some = filled(seqs)
            db.execute(members(START, len(some)), [self.boot, now, int(alone), target, *some])
        return started


def hasten(db: sqlite3.Connection, target: str, seqs: Sequence[int]) -> None:
    """Deliveries that wait for another try are due as of their arrival, so that the oldest goes out first."""
    for some in (seqs[start : start + 500] for start in range(0, len(seqs), 500)):
        some = filled(some)  # noqa: PLW2901  # few statements
        db.execute(members(HASTEN, len(some)), [target, *some])


def give_back(db: sqlite3.Connection, taken: Iterable[Claimed], now: int, books: Books) -> None:
    """Claimed and not started: pending again, and the attempt does not count."""
    for one in taken:
        done = db.execute(GIVE_BACK, (one.event.seq, one.target, one.run, one.attempt))
        if done.rowcount:
            books.entries.moved(one.event.source, "running", "pending", now)


def put_off(db: sqlite3.Connection, one: Claimed, due: int, now: int, books: Books) -> None:
    """Started, and it could not be made for no fault of its own: pending again from `due` on, and it does not count."""
    done = db.execute(PUT_OFF, (due, one.event.seq, one.target, one.run, one.attempt))
    if done.rowcount:
        books.entries.moved(one.event.source, "running", "pending", now)


def _set_aside(db: sqlite3.Connection, row: Row, why: str, now: int, books: Books, skipping: frozenset[str]) -> None:
    """One unreadable row must not stop the others: it is dead, with the reason."""
    order_key, rerun = db.execute(SET_ASIDE, (why, now, row[0], row[1])).fetchone()
    books.entries.moved(row[2], "pending", "dead", now)
    end(db, row[1], "dead", order_key, rerun, now, books, skips=row[1] in skipping)


def claimed(row: Row, instance: str) -> Claimed:
    """A row of the claim as the attempt that it starts. Raises ValueError or MsgspecError for what cannot be read."""
    seq, target, source, run, attempts, failures, suspect, id, type, at, parent, *body, again, lane = row
    headers, kind, encoding, raw = body
    if headers is None:
        raise Gone(GONE)
    event = Event(
        seq=seq,
        source=source,
        id=id,
        type=type,
        received_at=EPOCH + timedelta(microseconds=at),
        headers=event_headers(msgspec.json.decode(headers) if headers else []),
        content_type=kind or "",
        body=decode(raw, encoding) if encoding else raw,
        raw=raw,
        run=run,
        attempt=attempts + 1,
        parent=parent,
        instance=instance,
        again=bool(again),
    )
    return Claimed(event, target, run, attempts + 1, failures, suspect, encoding, lane > 0)
