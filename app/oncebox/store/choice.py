"""Choice: which deliveries a rerun means, found oldest first and a bounded piece at a time. Reads only."""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from oncebox.encoding import decode
from oncebox.model import Arrival, Planned
from oncebox.pointer import Document, Path, canonical, equal, parse
from oncebox.store.listing import HOUR, RARE, Selection, conditions
from oncebox.store.queries import MANY
from oncebox.store.routing import Routing
from oncebox.store.statement import own

STATES = ("done", "dead", "unrouted")
ENDED = ("done", "dead")
WINDOW, WIDEST = 2048, 1 << 15
PATIENCE = 0.1

NEWEST = own("select coalesce(max(seq), 0) from events")
AT = own("select seq, received_at from events where seq >= ? order by seq limit 1")
RECEIVED = own("select n from totals where minute = 0 and source = ? and what = 'received'")
OF_SOURCE = own("select seq from events where source = ? and +seq > ? and +seq <= ? order by +seq limit ?")
# SQLite takes the index only if its whole condition stands in the query.
DEAD = "from deliveries indexed by deliveries_open where state in ('parked', 'running', 'dead') and state = 'dead'"
NEXT_TARGET = own(f"select target {DEAD} and target > ? order by target limit 1")
DEAD_OF = own(f"select seq {DEAD} and target = ? and seq > ? and seq <= ? order by seq limit ?")
KNOWN = own(f"select seq from events where seq {MANY} order by seq")
KEPT = own(f"select seq from payloads where seq {MANY}")
DELIVERIES = own(f"select seq, target, state, run, order_key from deliveries where seq {MANY} order by seq, target")
STORED = own(
    "select e.source, e.id, e.type, e.received_at, e.body_hash, e.verified, e.parent, p.headers, p.content_type, "
    "p.encoding, p.body from events e join payloads p on p.seq = e.seq where e.seq = ?"
)


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be run again: these events, or all that fit. Times are unix microseconds, `type` is a glob.

    `state` done or dead means the deliveries in it; unrouted means events without any. `to` keeps to these targets,
    and events that have no delivery there get one (unless `state` asks for existing ones).
    """

    seqs: tuple[int, ...] = ()
    source: str | None = None
    type: str | None = None
    state: str | None = None
    since: int | None = None
    until: int | None = None
    where: dict[str, object] = {}
    to: tuple[str, ...] = ()


class Picked(msgspec.Struct, frozen=True):
    """One delivery to run again. `run` is the run it has had, 0: there is none yet."""

    seq: int
    target: str
    run: int
    order_key: str | None


class Piece(msgspec.Struct, frozen=True):
    """What was found up to `position`. `skipped`: deliveries that are not finished, events whose body is gone."""

    picked: list[Picked]
    position: int
    skipped: int


class Delivery(msgspec.Struct, frozen=True):
    """What decides about a delivery."""

    seq: int
    target: str
    state: str
    run: int
    order_key: str | None


def bounds(db: sqlite3.Connection, choice: Choice) -> tuple[int, int]:
    """The numbers between which all lies that is meant now: above the first, up to the second."""
    newest = db.execute(NEWEST).fetchone()[0]
    if choice.seqs:
        return 0, max(choice.seqs)
    low = 0 if choice.since is None else _first_at(db, choice.since - HOUR, newest + 1) - 1
    high = newest if choice.until is None else _first_at(db, choice.until + HOUR, newest + 1)
    return low, min(high, newest)


def unknown(db: sqlite3.Connection, seqs: Sequence[int]) -> list[int]:
    """Those numbers that no event has."""
    known = {seq for (seq,) in db.execute(KNOWN, (_array(seqs),))}
    return [seq for seq in seqs if seq not in known]


def piece(db: sqlite3.Connection, choice: Choice, after: int, upto: int, limit: int, routing: Routing) -> Piece:
    """What fits among the next events: those of at most `limit`, as far as it gets in a tenth of a second. What went to
    a target that is gone is skipped."""
    seqs, position = find(db, choice, after, upto, limit)
    kept = {seq for (seq,) in db.execute(KEPT, (_array(seqs),))}
    deliveries: dict[int, list[Delivery]] = defaultdict(list)
    for row in db.execute(DELIVERIES, (_array(seqs),)):
        deliveries[row[0]].append(Delivery(*row))
    where = [(parse(pointer), canonical(value)) for pointer, value in choice.where.items()]
    picked: list[Picked] = []
    skipped = 0
    end = time.monotonic() + PATIENCE
    for seq in seqs:
        if seq not in kept:
            skipped += 1
        else:
            some, left = _of_event(db, choice, where, seq, deliveries[seq], routing)
            picked += some
            skipped += left
        if time.monotonic() > end:
            return Piece(picked, seq, skipped)
    return Piece(picked, position, skipped)


def _first_at(db: sqlite3.Connection, at: int, top: int) -> int:
    """Near the first number of that time, by halves: times grow with the numbers, but for a clock that was set back."""
    low, high = 1, top
    while low < high:
        middle = (low + high) // 2
        row = db.execute(AT, (middle,)).fetchone()
        if row is None or row[1] >= at:
            high = middle
        else:
            low = row[0] + 1
    return low


def find(db: sqlite3.Connection, choice: Choice, after: int, upto: int, limit: int) -> tuple[list[int], int]:
    """The next events that fit, and up to where that is all of them."""
    if choice.seqs:
        seqs = sorted(seq for seq in set(choice.seqs) if after < seq <= upto)[:limit]
        return seqs, seqs[-1] if len(seqs) == limit else upto
    ahead = _ahead(db, choice, after, upto, limit)
    where, values = conditions(_selection(choice))
    if ahead is not None:
        picked = own(f"select e.seq from events e where e.seq {MANY}{where} order by e.seq")
        seqs = [seq for (seq,) in db.execute(picked, (_array(ahead), *values))]
        return seqs, ahead[-1] if len(ahead) == limit else upto
    return _walk(db, where, values, after, upto, limit)


def _walk(
    db: sqlite3.Connection, where: str, values: list[object], after: int, upto: int, limit: int
) -> tuple[list[int], int]:
    """Window by window, until enough is found or the patience is at its end."""
    window = own(f"select e.seq from events e where e.seq > ? and e.seq <= ?{where} order by e.seq limit ?")
    found: list[int] = []
    size, end = WINDOW, time.monotonic() + PATIENCE
    while after < upto and time.monotonic() < end:
        top, room = min(upto, after + size), limit - len(found)
        some = [seq for (seq,) in db.execute(window, (after, top, *values, room))]
        found += some
        if len(some) == room:
            return found, some[-1]
        after, size = top, min(WIDEST, size * 2)
    return found, after


def _ahead(db: sqlite3.Connection, choice: Choice, after: int, upto: int, limit: int) -> list[int] | None:
    """The next candidates where an index knows them; None: look at every number."""
    if choice.state == "dead":
        return _dead(db, choice.to or _targets(db), after, upto, limit)
    if choice.source is None:
        return None
    received = db.execute(RECEIVED, (choice.source,)).fetchone()
    if received is None:
        return []
    if received[0] > RARE:
        return None
    return [seq for (seq,) in db.execute(OF_SOURCE, (choice.source, after, upto, limit))]


def _dead(db: sqlite3.Connection, targets: Iterable[str], after: int, upto: int, limit: int) -> list[int]:
    found: set[int] = set()
    for target in targets:
        found.update(seq for (seq,) in db.execute(DEAD_OF, (target, after, upto, limit)))
    return sorted(found)[:limit]


def _targets(db: sqlite3.Connection) -> list[str]:
    """The targets with something dead, found by jumping from one to the next."""
    targets: list[str] = []
    row = db.execute(NEXT_TARGET, ("",)).fetchone()
    while row is not None:
        targets.append(row[0])
        row = db.execute(NEXT_TARGET, row).fetchone()
    return targets


def _selection(choice: Choice) -> Selection:
    return Selection(source=choice.source, type=choice.type, state=choice.state, since=choice.since, until=choice.until)


def _of_event(
    db: sqlite3.Connection,
    choice: Choice,
    where: Sequence[tuple[Path, object]],
    seq: int,
    deliveries: Sequence[Delivery],
    routing: Routing,
) -> tuple[list[Picked], int]:
    """The deliveries of one event that are meant, and how many of them cannot be made now."""
    mine = [one for one in deliveries if not choice.to or one.target in choice.to]
    if choice.state in ENDED:
        mine = [one for one in mine if one.state == choice.state]
    arrival = stored_arrival(db, seq) if where or _may_miss(choice, deliveries) else None
    if where and (arrival is None or not holds(arrival, where)):
        return [], 0
    picked = [
        Picked(one.seq, one.target, one.run, one.order_key)
        for one in mine
        if one.state in ENDED and routing.exists(one.target)
    ]
    left = len(mine) - len(picked)
    if arrival is not None and _may_miss(choice, deliveries):
        missing = _missing(choice, seq, {one.target for one in deliveries}, routing.router(arrival))
        made = [one for one in missing if routing.exists(one.target)]
        picked += made
        left += len(missing) - len(made)
    return picked, left


def _may_miss(choice: Choice, deliveries: Sequence[Delivery]) -> bool:
    """May the event get deliveries that it never had?"""
    if choice.state in ENDED:
        return False
    return not deliveries or bool(set(choice.to) - {one.target for one in deliveries})


def _missing(choice: Choice, seq: int, there: set[str], planned: Sequence[Planned]) -> list[Picked]:
    """Deliveries to be made: to the named targets, else by today's routes."""
    keys = {plan.target: plan.order_key for plan in planned}
    wanted = choice.to or tuple(keys)
    return [Picked(seq, target, 0, keys.get(target)) for target in wanted if target not in there]


def holds(arrival: Arrival, where: Sequence[tuple[Path, object]]) -> bool:
    """Has the body these values at these places?"""
    document = Document(arrival.decoded, arrival.content_type)
    return all(equal(document.at(path), value) for path, value in where)


def stored_arrival(db: sqlite3.Connection, seq: int) -> Arrival | None:
    """An event as it arrived, for the router; None once its body is gone."""
    row: tuple[Any, ...] | None = db.execute(STORED, (seq,)).fetchone()
    if row is None:
        return None
    source, id, type, at, body_hash, verified, parent, headers, content_type, encoding, body = row
    return Arrival(
        source=source,
        id=id,
        type=type,
        received_at=at,
        headers=msgspec.json.decode(headers, type=tuple[tuple[str, str], ...]),
        content_type=content_type or "",
        encoding=encoding,
        body=body,
        decoded=_decoded(body, encoding),
        body_hash=body_hash,
        verified=verified,
        parent=parent,
    )


def _decoded(body: bytes, encoding: str | None) -> bytes:
    try:
        return decode(body, encoding) if encoding else body
    except ValueError:
        return body


def _array(seqs: Sequence[int]) -> str:
    return msgspec.json.encode(list(seqs)).decode()
