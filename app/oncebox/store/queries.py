"""Queries: stored events and refused requests, read by their numbers and keys."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from oncebox.model import Reply
from oncebox.store.replies import stored_reply
from oncebox.store.statement import own

MANY = "in (select value from json_each(?))"

EVENTS = own(
    "select e.seq, e.source, e.id, e.type, e.received_at, e.size, e.verified, e.parent, e.reply, "
    "p.seq is not null, p.content_type, x.seq is not null, coalesce(r.replays, 0), r.last_at, coalesce(r.conflicts, 0) "
    "from events e left join payloads p on p.seq = e.seq left join erased x on x.seq = e.seq "
    f"left join replays r on r.seq = e.seq where e.seq {MANY}"
)
DELIVERIES = own(
    "select seq, target, state, run, attempts, due, started_at, duration, outcome, error, processed_at "
    f"from deliveries where seq {MANY} order by seq, target"
)
FIND = own("select seq from events where source = ? and id = ?")
HEADERS = own("select headers from payloads where seq = ?")
VARIANTS = own(
    "select body_hash, first_at, content_type, encoding, length(body) from variants where seq = ? order by first_at"
)
ATTEMPTS = own(
    "select target, run, number, started_at, duration, outcome, detail from attempts where seq = ? "
    "order by target, run, number"
)
BODY = own(
    "select e.source, p.content_type, p.encoding, p.body from events e join payloads p on p.seq = e.seq where e.seq = ?"
)
VARIANT = own(
    "select e.source, v.content_type, v.encoding, v.body from events e join variants v on v.seq = e.seq "
    "where e.seq = ? and v.body_hash = ?"
)
REFUSED = "select n, source, at, slug, detail, method, url, length(body), accepted_at, {} from refused"
REFUSED_ALL = own(REFUSED.format("null, null") + " where n < ? order by n desc limit ?")
REFUSED_OF = own(REFUSED.format("null, null") + " where source = ? and n < ? order by n desc limit ?")
REFUSED_ONE = own(REFUSED.format("headers, body") + " where n = ?")
GENERATION = own("select value from meta where name = 'generation'")


class DeliveryRow(msgspec.Struct, frozen=True):
    """One delivery with its latest attempt; times are unix microseconds, `duration` microseconds."""

    seq: int
    target: str
    state: str
    run: int
    attempts: int
    due: int
    started_at: int | None
    duration: int | None
    outcome: str | None
    error: str | None
    processed_at: int | None


class EventRow(msgspec.Struct, frozen=True):
    """One event as lists show it. `body` is kept, pruned or erased; `reply` the number of a reply of its own."""

    seq: int
    source: str
    id: str
    type: str | None
    received_at: int
    size: int
    verified: str
    parent: int | None
    reply: int | None
    content_type: str | None
    body: str
    replays: int
    last_replay_at: int | None
    conflicts: int
    deliveries: tuple[DeliveryRow, ...]


class AttemptRow(msgspec.Struct, frozen=True):
    """One try of a delivery that has ended."""

    target: str
    run: int
    number: int
    started_at: int
    duration: int | None
    outcome: str
    detail: str | None


class VariantRow(msgspec.Struct, frozen=True):
    """Another body that came under the same id."""

    body_hash: bytes
    first_at: int
    content_type: str | None
    encoding: str | None
    size: int


class EventDetail(msgspec.Struct, frozen=True):
    """One event with all that is known of it but its body. `headers` are empty once the body is gone."""

    event: EventRow
    headers: tuple[tuple[str, str], ...]
    reply: Reply | None
    variants: tuple[VariantRow, ...]
    attempts: tuple[AttemptRow, ...]


class Body(msgspec.Struct, frozen=True):
    """The exact bytes of a body, and what the sender said they are."""

    source: str
    content_type: str | None
    encoding: str | None
    body: bytes


class RefusedRow(msgspec.Struct, frozen=True):
    """A request that was turned away; `headers` and `body` only when it was asked for alone."""

    n: int
    source: str
    at: int
    slug: str
    detail: str
    method: str
    url: str
    size: int
    accepted_at: int | None
    headers: bytes | None = None
    body: bytes | None = None


def events_by_seq(db: sqlite3.Connection, seqs: Sequence[int]) -> list[EventRow]:
    """The events of these numbers, in the order of `seqs`; unknown numbers are left out."""
    wanted = msgspec.json.encode(seqs).decode()
    deliveries: dict[int, list[DeliveryRow]] = defaultdict(list)
    for row in db.execute(DELIVERIES, (wanted,)):
        deliveries[row[0]].append(DeliveryRow(*row))
    events = {row[0]: _event(row, tuple(deliveries[row[0]])) for row in db.execute(EVENTS, (wanted,))}
    return [events[seq] for seq in seqs if seq in events]


def _event(row: tuple[Any, ...], deliveries: tuple[DeliveryRow, ...]) -> EventRow:
    *facts, kept, content_type, erased, replays, last_at, conflicts = row
    body = "kept" if kept else "erased" if erased else "pruned"
    return EventRow(*[*facts, content_type, body, replays, last_at, conflicts, deliveries])


def find_event(db: sqlite3.Connection, source: str, id: str) -> int | None:
    """The number of the event with this key, compared byte for byte."""
    row = db.execute(FIND, (source, id)).fetchone()
    return None if row is None else int(row[0])


def event_detail(db: sqlite3.Connection, seq: int) -> EventDetail | None:
    """All about one event; None if there is none of this number."""
    found = events_by_seq(db, [seq])
    if not found:
        return None
    headers = db.execute(HEADERS, (seq,)).fetchone()
    return EventDetail(
        event=found[0],
        headers=msgspec.json.decode(headers[0], type=tuple[tuple[str, str], ...]) if headers else (),
        reply=stored_reply(db, found[0].reply),
        variants=tuple(VariantRow(*row) for row in db.execute(VARIANTS, (seq,))),
        attempts=tuple(AttemptRow(*row) for row in db.execute(ATTEMPTS, (seq,))),
    )


def event_body(db: sqlite3.Connection, seq: int, variant: bytes | None = None) -> Body | None:
    """The bytes of an event's body, or of the variant with this hash; None if they are not there (any more)."""
    row = db.execute(BODY, (seq,)) if variant is None else db.execute(VARIANT, (seq, variant))
    found = row.fetchone()
    return None if found is None else Body(*found)


def refused_list(db: sqlite3.Connection, source: str | None, before: int, limit: int) -> list[RefusedRow]:
    """Refused requests with numbers below `before`, newest first."""
    if source is None:
        found = db.execute(REFUSED_ALL, (before, limit))
    else:
        found = db.execute(REFUSED_OF, (source, before, limit))
    return [RefusedRow(*row) for row in found]


def refused_one(db: sqlite3.Connection, n: int) -> RefusedRow | None:
    """One refused request with its headers and body."""
    row = db.execute(REFUSED_ONE, (n,)).fetchone()
    return None if row is None else RefusedRow(*row)


def generation(db: sqlite3.Connection) -> str:
    """The file's generation: another one after a restore, so that no cursor outlives its file."""
    return str(db.execute(GENERATION).fetchone()[0])
