"""Rerunning: what a person asks to have run again, from JSON to an order in the file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from oncebox.errors import Rejected
from oncebox.model import moment
from oncebox.operate import filters
from oncebox.operate.look import Query, not_found
from oncebox.operate.shape import Json
from oncebox.pointer import canonical, parse
from oncebox.store.acts import act
from oncebox.store.choice import ENDED, STATES, Choice, bounds, piece, unknown
from oncebox.store.queries import EventRow, events_by_seq, generation
from oncebox.store.reruns import Rerun, cancel, create, find_rerun, list_reruns
from oncebox.store.sqlite import SQLiteStore

LARGEST = (1 << 63) - 1
MOST_SEQS = 10_000
FASTEST = 100_000.0
LOOK = 2000
_FILTER = ("source", "type", "state", "since", "until", "where")


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/reruns`."""

    seqs: list[int] | None = None
    source: str | None = None
    type: str | None = None
    state: str | None = None
    since: str | None = None
    until: str | None = None
    where: dict[str, Any] | None = None
    to: list[str] = []
    rate: float | None = None
    again: bool = False
    dry_run: bool = False
    all: bool = False


class OneOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/events/{seq}/rerun`; it may be empty."""

    to: list[str] = []
    again: bool = False


def read_order(body: bytes) -> Order:
    """The JSON of a request. Raises Rejected 400 that says what is wrong."""
    try:
        return msgspec.json.decode(body or b"{}", type=Order)
    except msgspec.DecodeError as error:
        raise filters.bad_request(f"the body is not an order to run again: {error}") from None


def read_one_order(body: bytes) -> OneOrder:
    """The same for one event."""
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=OneOrder)
    except msgspec.DecodeError as error:
        raise filters.bad_request(f'the body is empty, or such as {{"to": ["shop"]}}: {error}') from None


def read_choice(order: Order, targets: Collection[str], now: int) -> Choice:
    """What an order means. Raises Rejected 400: nothing chosen, an unknown target or state, a bad time or pointer."""
    check_targets(order.to, targets)
    given = [name for name in _FILTER if getattr(order, name) not in (None, {})]
    if order.seqs is not None and (order.all or set(given) - {"state"}):
        beside = ", ".join(name for name in given if name != "state") or "all"
        raise filters.bad_request(f"seqs: cannot stand beside {beside}; give one or the other")
    if order.seqs is None and not given and not order.all:
        raise filters.bad_request(
            'the filter is empty, which would run all history again; give seqs or a filter, or say "all": true'
        )
    if order.state is not None and order.state not in STATES:
        raise filters.bad_request(
            f'state: "{order.state[:60]}" is none that can run again; known are: {", ".join(STATES)}'
        )
    if order.seqs is not None:
        if order.state is not None and order.state not in ENDED:
            raise filters.bad_request(f"seqs: can stand beside state {' or '.join(ENDED)}, not {order.state}")
        return Choice(seqs=_seqs(order.seqs), state=order.state, to=tuple(order.to))
    texts = {name: text for name in ("since", "until") if (text := getattr(order, name)) is not None}
    return Choice(
        source=order.source,
        type=order.type,
        state=order.state,
        since=filters.read_time(texts, "since", now),
        until=filters.read_time(texts, "until", now),
        where=_where(order.where or {}),
        to=tuple(dict.fromkeys(order.to)),
    )


def check_targets(named: Sequence[str], known: Collection[str]) -> None:
    """Raises Rejected 400 for a target that nobody is."""
    for name in named:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(known) or 'none'}"
            raise filters.bad_request(f'to: there is no target "{name[:80]}"; {hint}')


async def count(store: SQLiteStore, choice: Choice, between: tuple[int, int]) -> int:
    """How many deliveries are meant, in reads that are short each."""
    after, upto = between
    matched = 0
    routing = store.routing
    while after < upto:
        found = await store.read(lambda db, after=after: piece(db, choice, after, upto, LOOK, routing))  # type: ignore[misc]  # the default is an int
        matched += len(found.picked)
        after = found.position
    return matched


async def order_rerun(store: SQLiteStore, order: Order, targets: Collection[str], *, who: str, now: int) -> Json:
    """Write a rerun down, or only count when it is dry. Raises Rejected 400, 404."""
    if order.rate is not None and not 0 < order.rate <= FASTEST:
        raise filters.bad_request(f"rate: {order.rate:g} is not a number of deliveries a second up to {FASTEST:g}")
    choice = read_choice(order, targets, now)
    missing = await store.read(lambda db: unknown(db, choice.seqs))
    if missing:
        raise not_found(f"seqs: there is no event {', '.join(map(str, missing[:10]))}")
    between = await store.read(lambda db: bounds(db, choice))
    matched = await count(store, choice, between)
    if order.dry_run:
        return {"matched": matched}
    return await _write(store, choice, order.rate, matched, between, again=order.again, who=who, now=now)


async def rerun_event(
    store: SQLiteStore, seq: int, order: OneOrder, targets: Collection[str], *, who: str, now: int
) -> Json:
    """Have one event run again. Raises Rejected: 404 where there is no event or no body any more, 409 where it is
    being processed, 400 where it has nowhere to go."""
    check_targets(order.to, targets)
    known = await store.read(lambda db: events_by_seq(db, [seq])) if 0 < seq <= LARGEST else []
    if not known:
        raise not_found(f"there is no event {seq}")
    refuse_unfit(known[0], order.to)
    choice = Choice(seqs=(seq,), to=tuple(dict.fromkeys(order.to)))
    matched = await count(store, choice, (0, seq))
    if not matched:
        raise filters.bad_request(f"event {seq} goes nowhere by today's routes; add one, or name a target with to")
    return await _write(store, choice, None, matched, (0, seq), again=order.again, who=who, now=now)


def refuse_unfit(event: EventRow, to: Sequence[str]) -> None:
    """Raises Rejected for an event that cannot run again now."""
    if event.body != "kept":
        raise not_found(
            f"the body of event {event.seq} was {event.body}, so it cannot run again; its outcome is still known"
        )
    busy = [one for one in event.deliveries if one.state not in ENDED and (not to or one.target in to)]
    if busy:
        what = ", ".join(f"{one.target} is {one.state}" for one in busy)
        detail = f"event {event.seq}: {what}; run it again when that has ended"
        raise Rejected(409, "in-progress", detail)


async def cancel_rerun(store: SQLiteStore, id: int, *, who: str, now: int) -> Json:
    """Queue nothing more of a rerun; what is queued is still processed. Raises Rejected 404."""

    def work(db: Any, _books: Any) -> Rerun | None:
        if cancel(db, id, now):
            act(db, who, "rerun cancelled", str(id), now)
        return find_rerun(db, id)

    found = await store.change(work) if 0 < id <= LARGEST else None
    if found is None:
        raise not_found(f"there is no rerun {id}")
    return rerun_json(found)


def rerun(id: int) -> Query:
    """One rerun and how far it has got."""

    def query(db: Any) -> Json:
        found = find_rerun(db, id) if 0 < id <= LARGEST else None
        if found is None:
            raise not_found(f"there is no rerun {id}")
        return rerun_json(found)

    return query


def reruns(given: Mapping[str, str]) -> Query:
    """A piece of the list of reruns, newest first."""
    filters.check_names(given, ("limit", "cursor"))
    limit = filters.read_limit(given)

    def query(db: Any) -> Json:
        made = generation(db)
        before = filters.read_cursor(given, made)
        found = list_reruns(db, LARGEST if before is None else before, limit + 1)
        more = found[limit - 1].id if len(found) > limit else None
        return {"reruns": [rerun_json(one) for one in found[:limit]], "next": filters.write_cursor(made, more)}

    return query


def rerun_json(one: Rerun) -> Json:
    """A rerun as it is shown."""
    return {
        "id": one.id,
        "state": one.state,
        "matched": one.matched,
        "queued": one.queued,
        "done": one.done,
        "dead": one.dead,
        "skipped": one.skipped,
        "filter": _filter_json(one.choice),
        "to": list(one.choice.to),
        "rate": one.rate,
        "again": one.again,
        "who": one.who,
        "created_at": moment(one.created_at),
        "finished_at": None if one.finished_at is None else moment(one.finished_at),
    }


def _filter_json(choice: Choice) -> Json:
    """As it was given; of many numbers the first, and the state that may stand beside them."""
    shown = {name: value for name in _FILTER if (value := getattr(choice, name)) not in (None, {})}
    for name in ("since", "until"):
        if name in shown:
            shown[name] = moment(shown[name])
    if choice.seqs:
        shown = {"seqs": list(choice.seqs[:100])} | shown
    return shown or {"all": True}


async def _write(
    store: SQLiteStore,
    choice: Choice,
    rate: float | None,
    matched: int,
    between: tuple[int, int],
    *,
    again: bool,
    who: str,
    now: int,
) -> Json:
    def work(db: Any, _books: Any) -> Rerun | None:
        id = create(db, choice, rate=rate, again=again, matched=matched, between=between, who=who, now=now)
        act(db, who, "rerun", f"{id}: {_told(choice)}", now)
        return find_rerun(db, id)

    made = await store.change(work)
    assert made is not None
    shown = rerun_json(made)
    return {name: shown[name] for name in ("id", "state", "matched", "queued", "done", "dead")}


def _told(choice: Choice) -> str:
    text = " ".join(f"{name}={value}" for name, value in _filter_json(choice).items())
    to = f" to {', '.join(choice.to)}" if choice.to else ""
    return f"{text}{to}"[:500]


def _seqs(seqs: Sequence[int]) -> tuple[int, ...]:
    if not 1 <= len(seqs) <= MOST_SEQS:
        raise filters.bad_request(f"seqs: has {len(seqs)} numbers; 1 to {MOST_SEQS} are allowed, or use a filter")
    wrong = next((seq for seq in seqs if not 0 < seq <= LARGEST), None)
    if wrong is not None:
        raise filters.bad_request(f"seqs: {wrong} is not the number of an event")
    return tuple(sorted(set(seqs)))


def _where(where: dict[str, Any]) -> dict[str, object]:
    try:
        for pointer, value in where.items():
            parse(pointer)
            canonical(value)
    except ValueError as error:
        raise filters.bad_request(f"where: {error}") from None
    return where
