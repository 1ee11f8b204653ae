"""Accepts: a group of requests becomes rows, in one transaction, each id once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from oncebox.errors import IdConflict
from oncebox.model import Arrival, Planned, Reply, Stored
from oncebox.store.books import Books
from oncebox.store.replies import keep_reply, stored_reply
from oncebox.store.routing import Routing
from oncebox.store.statement import BEGIN, COMMIT, members, own, rows

ROWS = 64
CLAMP = 1_000_000

LOOK_UP = "select id, seq, received_at, body_hash, reply from events where source = ? and id in"
LATEST = own(
    "select id, seq, received_at, body_hash, reply from events where source = ? and id > ? and id < ? "
    "order by id desc limit 1"
)
INSERT_EVENT = "insert into events (source, id, seq, type, received_at, size, body_hash, verified, parent, reply)"
INSERT_PAYLOAD = "insert into payloads (seq, headers, content_type, encoding, body)"
INSERT_DELIVERY = "insert into deliveries (seq, target, source, order_key, state, due)"

_encode = msgspec.json.Encoder().encode

Key = tuple[str, str]
T = TypeVar("T")


class Known(msgspec.Struct):
    """An event that is stored, or will be with this group."""

    seq: int
    id: str
    received_at: int
    body_hash: bytes
    reply: Reply | None


class Outcome(msgspec.Struct):
    """What a group of requests came to: for each its answers or its error; and what to write down later."""

    answers: list[list[Stored] | Exception]
    replays: list[tuple[int, int, int]]
    variants: list[tuple[int, Arrival]]
    targets: set[str]


class Twice(sqlite3.IntegrityError):
    """An id that the look-up did not find was there at the insert: somebody else writes to the file."""


def accept(db: sqlite3.Connection, requests: Sequence[Sequence[Arrival]], books: Books, routing: Routing) -> Outcome:
    """Store what is new of a group, find what is known. A group of replays opens no write transaction.

    Any sqlite3.Error leaves the transaction to the caller to roll back, and nothing of the group is stored.
    """
    known = look_up(db, requests)
    outcome = Outcome([], [], [], set())
    fresh: list[tuple[int, Arrival]] = []
    for request in requests:
        outcome.answers.append(_judge(request, known, books, fresh, outcome))
    if fresh:
        db.execute(BEGIN)
        outcome.targets = insert(db, fresh, books, routing)
        books.save(db)
        db.execute(COMMIT)
    return outcome


def look_up(db: sqlite3.Connection, requests: Sequence[Sequence[Arrival]]) -> dict[Key, Known]:
    """The stored events that the requests repeat."""
    wanted: dict[str, set[str]] = {}
    windowed: list[Arrival] = []
    for request in requests:
        for arrival in request:
            wanted.setdefault(arrival.source, set()).add(arrival.id)
            if arrival.window:
                windowed.append(arrival)
    known: dict[Key, Known] = {}
    for source, ids in wanted.items():
        for some in _chunks(list(ids), 500):
            for row in db.execute(members(LOOK_UP, len(some)), [source, *some]).fetchall():
                known[source, row[0]] = _known(db, row)
    for arrival in windowed:
        latest = db.execute(LATEST, (arrival.source, arrival.id + ".", arrival.id + "/")).fetchone()
        if latest is not None:
            known[arrival.source, arrival.id] = _known(db, latest)
    return known


def _known(db: sqlite3.Connection, row: tuple[Any, ...]) -> Known:
    id, seq, received_at, body_hash, reply = row
    return Known(seq, id, received_at, body_hash, stored_reply(db, reply))


def _judge(
    request: Sequence[Arrival],
    known: dict[Key, Known],
    books: Books,
    fresh: list[tuple[int, Arrival]],
    outcome: Outcome,
) -> list[Stored] | Exception:
    """New, or known? Decided for the whole request before any of it is taken in: it is all or nothing."""
    conflict = _rejected(request, known)
    if conflict is not None:
        return conflict
    answers = []
    for arrival in request:
        key = (arrival.source, arrival.id)
        seen = known.get(key)
        if seen is not None and not (arrival.window and arrival.received_at - seen.received_at > arrival.window):
            answers.append(_replay(arrival, seen, outcome))
            continue
        seq = books.number()
        if arrival.window:
            arrival = _dated(arrival)  # noqa: PLW2901  # under its own name from here on
        known[key] = Known(seq, arrival.id, arrival.received_at, arrival.body_hash, arrival.reply)
        answers.append(Stored(seq, arrival.id, arrival.received_at, arrival.reply, replayed=False))
        fresh.append((seq, arrival))
    return answers


def _dated(arrival: Arrival) -> Arrival:
    """An id that comes again after its window is another event: the time makes it one, and keeps them in order."""
    return msgspec.structs.replace(arrival, id=f"{arrival.id}.{arrival.received_at:020d}")


def _rejected(request: Sequence[Arrival], known: dict[Key, Known]) -> IdConflict | None:
    hashes: dict[Key, bytes] = {}
    for arrival in request:
        if not arrival.reject_conflict:
            continue
        key = (arrival.source, arrival.id)
        seen = known.get(key)
        before = hashes.setdefault(key, seen.body_hash if seen is not None else arrival.body_hash)
        if before != arrival.body_hash:
            return IdConflict(
                f"the id {arrival.id!r} of source {arrival.source} was accepted before with another body; "
                "send the same bytes again, or a new event under a new id"
            )
    return None


def _replay(arrival: Arrival, seen: Known, outcome: Outcome) -> Stored:
    conflict = seen.body_hash != arrival.body_hash
    outcome.replays.append((seen.seq, arrival.received_at, int(conflict)))
    if conflict:
        outcome.variants.append((seen.seq, arrival))
    return Stored(seen.seq, seen.id, seen.received_at, seen.reply, replayed=True, conflict=conflict)


def insert(db: sqlite3.Connection, fresh: Sequence[tuple[int, Arrival]], books: Books, routing: Routing) -> set[str]:
    """Write numbered arrivals, their payloads and the deliveries that today's routes ask for; the targets to wake."""
    targets: set[str] = set()
    for some in _chunks(fresh, ROWS):
        _insert_events(db, some)
        _insert_payloads(db, some)
        planned = [(seq, arrival, routing.router(arrival)) for seq, arrival in some]
        targets |= _insert_deliveries(db, planned, routing, books)
    _count(fresh, books)
    return targets


def _insert_events(db: sqlite3.Connection, some: Sequence[tuple[int, Arrival]]) -> None:
    values: list[object] = []
    for seq, a in some:
        reply = None if a.reply is None else keep_reply(db, a.reply)
        values += (a.source, a.id, seq, a.type, a.received_at, len(a.body), a.body_hash, a.verified, a.parent, reply)
    done = db.execute(rows(INSERT_EVENT, 10, len(some), "on conflict (source, id) do nothing"), values)
    if done.rowcount != len(some):
        raise Twice(f"{len(some) - done.rowcount} of {len(some)} ids were stored by another writer")


def _insert_payloads(db: sqlite3.Connection, some: Sequence[tuple[int, Arrival]]) -> None:
    values: list[object] = []
    for seq, a in some:
        values += (seq, _encode(a.headers), a.content_type, a.encoding, a.body)
    db.execute(rows(INSERT_PAYLOAD, 5, len(some)), values)


def _insert_deliveries(
    db: sqlite3.Connection,
    planned: Sequence[tuple[int, Arrival, Sequence[Planned]]],
    routing: Routing,
    books: Books,
) -> set[str]:
    targets: set[str] = set()
    values: list[object] = []
    count = 0
    entries = books.entries
    for seq, arrival, plans in planned:
        source, now = arrival.source, arrival.received_at
        if not plans:
            entries[source, "unrouted", 0] += 1
        for plan in plans:
            state = "pending" if plan.order_key is None else routing.place(db, plan.target, plan.order_key)
            entries[source, state, 0] += 1
            targets.add(plan.target)
            values += (seq, plan.target, source, plan.order_key, state, now)
            count += 1
            if plan.order_key is not None or count == ROWS:
                db.execute(rows(INSERT_DELIVERY, 6, count), values)
                values, count = [], 0
    if count:
        db.execute(rows(INSERT_DELIVERY, 6, count), values)
    return targets


def _count(fresh: Sequence[tuple[int, Arrival]], books: Books) -> None:
    for _, arrival in fresh:
        books.entries.added(arrival.source, "received", arrival.received_at)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]
