"""Shape: stored things as the JSON that the API and the command line show. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import msgspec

from oncebox.model import Reply, Result, moment, receipt
from oncebox.store.books import MINUTE
from oncebox.store.figures import Figures, Totals
from oncebox.store.listing import Page
from oncebox.store.operations import Known
from oncebox.store.queries import AttemptRow, DeliveryRow, EventDetail, EventRow, RefusedRow, VariantRow

Json = dict[str, object]

# The first that applies is the event's state.
_ORDER = ("dead", "running", "pending", "parked")


def event_json(event: EventRow) -> Json:
    """One event as it stands in lists."""
    return {
        "seq": event.seq,
        "source": event.source,
        "id": event.id,
        "type": event.type,
        "received_at": moment(event.received_at),
        "state": state_of(event.deliveries),
        "processed_at": _moment(processed_at(event.deliveries)),
        "size": event.size,
        "content_type": event.content_type,
        "body": event.body,
        "verified": event.verified,
        "parent": event.parent,
        "replays": event.replays,
        "last_replay_at": _moment(event.last_replay_at),
        "conflicts": event.conflicts,
        "deliveries": [_delivery(one) for one in event.deliveries],
    }


def state_of(deliveries: Sequence[DeliveryRow]) -> str:
    """unrouted, dead, running, pending or done: the first that applies."""
    if not deliveries:
        return "unrouted"
    states = {one.state for one in deliveries}
    found = next((state for state in _ORDER if state in states), "done")
    return "pending" if found == "parked" else found


def processed_at(deliveries: Sequence[DeliveryRow]) -> int | None:
    """When the last delivery was done; None while any is not."""
    if any(one.state != "done" for one in deliveries):
        return None
    return max((one.processed_at for one in deliveries if one.processed_at is not None), default=None)


def detail_json(detail: EventDetail) -> Json:
    """One event with its headers, receipt, variants and the history of each delivery."""
    shown = event_json(detail.event)
    shown["headers"] = [list(pair) for pair in detail.headers]
    shown["receipt"] = _receipt(detail.event, detail.reply)
    shown["variants"] = [_variant(one) for one in detail.variants]
    shown["deliveries"] = [
        {**_delivery(one), "history": _history(one, detail.attempts)} for one in detail.event.deliveries
    ]
    return shown


def page_json(page: Page, cursor: str | None, *, searched: bool) -> Json:
    """A piece of the list; `searched_to` says how far bodies have been looked into."""
    shown: Json = {"events": [event_json(event) for event in page.events], "next": cursor}
    if searched:
        shown["searched_to"] = page.searched_to
    return shown


def stats_json(figures: Figures, operations: Mapping[str, int], *, wal_bytes: int, disk_free_bytes: int) -> Json:
    """The totals, the calls that have not ended, and what the file takes."""
    return {
        "events": figures.events,
        "by_state": figures.by_state,
        "sources": {
            name: {
                "received": one.received,
                "replays": one.replays,
                "refused": one.refused,
                "last_at": _moment(one.last_at),
            }
            for name, one in figures.sources.items()
        },
        "oldest_due_at": _moment(figures.oldest_due_at),
        "operations": dict(operations),
        "minutes": [[moment(minute * MINUTE), *counts] for minute, *counts in figures.minutes],
        "file": {
            "db": figures.db_bytes,
            "wal": wal_bytes,
            "free": figures.free_bytes,
            "disk_free": disk_free_bytes,
        },
    }


def totals_json(totals: Totals) -> Json:
    """The totals alone."""
    return {
        "events": totals.events,
        "by_state": totals.by_state,
        "sources": {
            name: {"received": one.received, "replays": one.replays, "refused": one.refused}
            for name, one in totals.sources.items()
        },
        "oldest_due_at": _moment(totals.oldest_due_at),
    }


def refused_json(one: RefusedRow) -> Json:
    """One refused request; headers and body only if they were read."""
    shown: Json = {
        "n": one.n,
        "source": one.source,
        "at": moment(one.at),
        "problem": one.slug,
        "detail": one.detail,
        "method": one.method,
        "url": one.url,
        "size": one.size,
        "accepted_at": _moment(one.accepted_at),
    }
    if one.headers is not None:
        shown["headers"] = msgspec.json.decode(one.headers)
    if one.body is not None:
        shown |= _text_or_base64(one.body)
    return shown


def call_json(one: Known) -> Json:
    """A call of an operation as it stands in lists."""
    return {
        "n": one.n,
        "caller": one.caller,
        "key": one.key,
        "operation": one.operation,
        "state": one.state,
        "attempts": one.attempts,
        "started_at": moment(one.started_at),
        "finished_at": _moment(one.finished_at),
        "status": one.status,
        "error": one.error,
    }


def reply_json(reply: Result, *, bodies: bool) -> Json:
    """What a repeat is answered; its body only if `bodies`."""
    shown: Json = {
        "status": reply.status,
        "headers": [list(pair) for pair in reply.headers],
        "size": len(reply.body),
    }
    return shown | _text_or_base64(reply.body) if bodies else shown


def _text_or_base64(body: bytes) -> Json:
    try:
        return {"body": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _delivery(one: DeliveryRow) -> Json:
    return {
        "target": one.target,
        "state": one.state,
        "run": one.run,
        "attempts": one.attempts,
        "next_attempt_at": moment(one.due) if one.state == "pending" else None,
        "processed_at": _moment(one.processed_at),
        "error": one.error,
    }


def _history(one: DeliveryRow, attempts: Sequence[AttemptRow]) -> list[Json]:
    """Every attempt that has ended. One that succeeded is in the delivery alone until a rerun takes its place."""
    mine = [attempt for attempt in attempts if attempt.target == one.target]
    known = {(attempt.run, attempt.number) for attempt in mine}
    ended = one.state in ("done", "dead") and one.outcome is not None and one.started_at is not None
    if ended and (one.run, one.attempts) not in known:
        assert one.started_at is not None
        assert one.outcome is not None
        mine.append(AttemptRow(one.target, one.run, one.attempts, one.started_at, one.duration, one.outcome, one.error))
    return [_attempt(attempt) for attempt in mine]


def _attempt(one: AttemptRow) -> Json:
    return {
        "run": one.run,
        "number": one.number,
        "started_at": moment(one.started_at),
        "duration_ms": None if one.duration is None else one.duration / 1000,
        "outcome": one.outcome,
        "detail": one.detail,
    }


def _receipt(event: EventRow, reply: Reply | None) -> Json | None:
    """What the sender was answered; an emitted event had no sender."""
    if event.verified == "emitted":
        return None
    if reply is None:
        reply = Reply(202, "application/json", receipt(event.source, event.id, event.received_at))
    body = reply.body.decode("utf-8", "replace")
    return {"status": reply.status, "content_type": reply.content_type, "body": body}


def _variant(one: VariantRow) -> Json:
    return {
        "body_hash": one.body_hash.hex(),
        "first_at": moment(one.first_at),
        "content_type": one.content_type,
        "encoding": one.encoding,
        "size": one.size,
    }


def _moment(at: int | None) -> str | None:
    return None if at is None else moment(at)
