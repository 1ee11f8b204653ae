"""Accepts: a group of requests becomes rows, in one transaction, each id once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from oncebox.errors import IdConflict, StoreError
from oncebox.model import Arrival, Planned, Reply, Stored
from oncebox.store.books import MINUTE, Books
from oncebox.store.faults import is_of_the_disk
from oncebox.store.group import COLUMNS, DELIVERY, EVENT, arriving, commit
from oncebox.store.jobs import roll_back
from oncebox.store.replies import keep_reply, stored_reply
from oncebox.store.routing import Routing
from oncebox.store.statement import BEGIN, COMMIT, filled, members, own

LOOK_UP = "select id, seq, received_at, body_hash, reply from events where source = ? and id in"
LATEST = own(
    "select id, seq, received_at, body_hash, reply from events where source = ? and id > ? and id < ? "
    "order by id desc limit 1"
)
NO_MORE = (None,) * (COLUMNS - 9)

_encode = msgspec.json.Encoder().encode

Key = tuple[str, str]
Numbered = tuple[int, Arrival]
Routed = tuple[int, Arrival, Sequence[Planned]]
Placed = tuple[int, Arrival, Sequence[tuple[Planned, str]]]
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


def serve(db: sqlite3.Connection, requests: Sequence[Sequence[Arrival]], books: Books, routing: Routing) -> Outcome:
    """Accept the whole group at once; if that fails for any reason but the disk's, one by one.

    Raises sqlite3.Error when the disk fails; then nothing is told to anybody.
    """
    try:
        return accept(db, requests, books, routing)
    except BaseException as error:  # SystemExit of an extractor would end the writer's loop
        roll_back(db, books)
        if is_of_the_disk(error):
            raise
    whole = Outcome([], [], [], set())
    for request in requests:
        try:
            one = accept(db, [request], books, routing)
        except BaseException as error:
            roll_back(db, books)
            if is_of_the_disk(error):
                raise
            whole.answers.append(StoreError(f"the event cannot be stored: {error}"))
            continue
        whole.answers += one.answers
        whole.replays += one.replays
        whole.variants += one.variants
        whole.targets |= one.targets
    return whole


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
        outcome.targets = _write(db, fresh, books, routing)
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
            some = filled(some)  # noqa: PLW2901  # few statements
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


def _write(db: sqlite3.Connection, fresh: Sequence[Numbered], books: Books, routing: Routing) -> set[str]:
    """Commit new arrivals: as one statement where each row speaks for itself, else as a transaction of several."""
    planned = [(seq, arrival, routing.router(arrival)) for seq, arrival in fresh]
    if any(_needs_a_look(arrival, plans) for _, arrival, plans in planned):
        db.execute(BEGIN)
        targets = _insert(db, planned, books, routing)
        books.save(db)
        db.execute(COMMIT)
        return targets
    targets = set()
    values: list[object] = []
    for one in planned:
        _add(values, one, None, targets, books)
    values += books.rows()
    commit(db, values, sum(len(arrival.body) for _, arrival in fresh))
    books.settled()
    return targets


def insert(db: sqlite3.Connection, fresh: Sequence[Numbered], books: Books, routing: Routing) -> set[str]:
    """Write numbered arrivals, their payloads and the deliveries that today's routes ask for, inside a transaction of
    the caller's; the targets to wake."""
    return _insert(db, [(seq, arrival, routing.router(arrival)) for seq, arrival in fresh], books, routing)


def _insert(db: sqlite3.Connection, planned: Sequence[Routed], books: Books, routing: Routing) -> set[str]:
    targets: set[str] = set()
    for seq, arrival, plans in planned:
        values: list[object] = []
        reply = None if arrival.reply is None else keep_reply(db, arrival.reply)
        placed = [(plan, routing.place(db, plan)) for plan in plans]
        _add(values, (seq, arrival, placed), reply, targets, books)
        db.execute(arriving(len(values) // COLUMNS), values)
    return targets


def _needs_a_look(arrival: Arrival, plans: Sequence[Planned]) -> bool:
    """Its rows depend on what is in the file: on the deliveries before it in order, or on known replies."""
    return arrival.reply is not None or any(plan.order_key is not None for plan in plans)


def _add(values: list[object], routed: Routed | Placed, reply: int | None, targets: set[str], books: Books) -> None:
    """The rows of one event."""
    seq, a, plans = routed
    source, now = a.source, a.received_at
    values += (EVENT, source, a.id, seq, a.type, now, len(a.body), a.body_hash, a.verified, a.parent, reply)
    values += (_encode(a.headers), a.content_type, a.encoding, a.body)
    entries = books.entries
    entries[source, "received", 0] += 1
    entries[source, "received", now // MINUTE] += 1
    if not plans:
        entries[source, "unrouted", 0] += 1
    for one in plans:
        plan, state = one if isinstance(one, tuple) else (one, "pending")
        entries[source, state, 0] += 1
        targets.add(plan.target)
        values += (DELIVERY, source, plan.target, seq, state, now, None, None, plan.order_key, *NO_MORE)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        yield items[start : start + size]
