"""History: stored events as they arrived, read oldest first and a short piece at a time. Reads only."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from oncebox.headers import Headers
from oncebox.model import Arrival, Event, instant
from oncebox.pointer import canonical, parse
from oncebox.store.choice import ENDED, PATIENCE, Choice, find, holds, stored_arrival
from oncebox.store.queries import MANY
from oncebox.store.statement import own

# Bodies of a piece are in memory together.
MOST_BYTES = 8 << 20
PIECE = 500

IN_STATE = own(f"select seq, target from deliveries where seq {MANY} and state = ?")
FACTS = own("select (select value from meta where name = 'instance'), (select value from meta where name = 'next_seq')")


class Past(msgspec.Struct, frozen=True):
    """An event of the past as it arrived. `only`: the targets that are meant, None: all that its routes name."""

    seq: int
    arrival: Arrival
    only: frozenset[str] | None = None


class Stretch(msgspec.Struct, frozen=True):
    """What was found up to `position`. `skipped`: events whose body is gone."""

    events: list[Past]
    position: int
    skipped: int


def stretch(db: sqlite3.Connection, choice: Choice, after: int, upto: int, limit: int) -> Stretch:
    """The next events that are meant, at most `limit`, as far as it gets in about a tenth of a second.

    With a state they are those of which a delivery is in it (to one of `to`, if there are any), and only that is meant.
    """
    seqs, position = find(db, choice, after, upto, limit)
    meant = _in_state(db, choice, seqs) if choice.state in ENDED else None
    where = [(parse(pointer), canonical(value)) for pointer, value in choice.where.items()]
    events: list[Past] = []
    skipped = size = 0
    end = time.monotonic() + PATIENCE
    for seq in seqs:
        only = None if meant is None else meant[seq]
        if only is None or only:
            arrival = stored_arrival(db, seq)
            if arrival is None:
                skipped += 1
            elif holds(arrival, where):
                events.append(Past(seq, arrival, only))
                size += len(arrival.body) + len(arrival.decoded)
        if size > MOST_BYTES or time.monotonic() > end:
            return Stretch(events, seq, skipped)
    return Stretch(events, position, skipped)


def events(db: sqlite3.Connection, choice: Choice) -> list[Event]:
    """All events that are meant and still have a body, oldest first, as a handler would see them."""
    instance, next_seq = facts(db)
    found: list[Event] = []
    position = 0
    while position < next_seq:
        some = stretch(db, choice, position, next_seq, PIECE)
        found += [_event(one, instance) for one in some.events]
        position = some.position
    return found


def _event(past: Past, instance: str) -> Event:
    arrival = past.arrival
    return Event(
        seq=past.seq,
        source=arrival.source,
        id=arrival.id,
        type=arrival.type,
        received_at=instant(arrival.received_at),
        headers=Headers(arrival.headers),
        content_type=arrival.content_type,
        body=arrival.decoded,
        raw=arrival.body,
        parent=arrival.parent,
        instance=instance,
    )


def facts(db: sqlite3.Connection) -> tuple[str, int]:
    """The file's own name for itself, and the next arrival number."""
    instance, next_seq = db.execute(FACTS).fetchone()
    return str(instance), int(next_seq)


def _in_state(db: sqlite3.Connection, choice: Choice, seqs: Sequence[int]) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for seq, target in db.execute(IN_STATE, (msgspec.json.encode(list(seqs)).decode(), choice.state)):
        if not choice.to or target in choice.to:
            found[seq].add(target)
    return {seq: frozenset(found[seq]) for seq in seqs}
