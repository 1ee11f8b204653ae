"""Look: the questions a person asks, each as one function of a connection, answered as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from oncebox.errors import Rejected
from oncebox.operate import filters
from oncebox.operate.shape import Json, detail_json, page_json, refused_json, stats_json
from oncebox.store.callbook import open_calls
from oncebox.store.figures import figures
from oncebox.store.listing import list_events
from oncebox.store.queries import (
    Body,
    event_body,
    event_detail,
    events_by_seq,
    find_event,
    generation,
    refused_list,
    refused_one,
)

# Any: the connection's type belongs to the store.
Query = Callable[[Any], Json]

STATS = ("minutes",)
REFUSED = ("source", "limit", "cursor")


def not_found(detail: str) -> Rejected:
    """The refusal of a question about something that is not there."""
    return Rejected(404, "not-found", detail)


def events(given: Mapping[str, str], now: int) -> Query:
    """A piece of the list of events."""

    def query(db: Any) -> Json:
        made = generation(db)
        wanted = filters.read_selection(given, now, made)
        page = list_events(db, wanted)
        return page_json(page, filters.write_cursor(made, page.next), searched=wanted.body is not None)

    return query


def event(seq: int) -> Query:
    """All about one event."""

    def query(db: Any) -> Json:
        found = event_detail(db, seq) if 0 < seq <= filters.LARGEST else None
        if found is None:
            raise not_found(f"there is no event {seq}")
        return detail_json(found)

    return query


def lookup(given: Mapping[str, str]) -> Query:
    """All about the event with this key."""
    filters.check_names(given, ("source", "id"))
    for name in ("source", "id"):
        if not given.get(name):
            raise filters.bad_request(f"{name}: is missing; ask with both source and id")

    def query(db: Any) -> Json:
        seq = find_event(db, given["source"], given["id"])
        if seq is None:
            raise not_found(f'no event of source "{given["source"][:80]}" with this id was ever accepted here')
        return event(seq)(db)

    return query


def stats(given: Mapping[str, str], now: int, database: Path, sources: Iterable[str] = ()) -> Query:
    """The totals and the last minutes."""
    filters.check_names(given, STATS)
    minutes = filters.read_count(given, "minutes", 60, 1440)

    def query(db: Any) -> Json:
        disk = os.statvfs(database.parent)
        return stats_json(
            figures(db, now, minutes, sources),
            open_calls(db),
            wal_bytes=_size(Path(f"{database}-wal")),
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
        )

    return query


def refused(given: Mapping[str, str]) -> Query:
    """Requests that were turned away, newest first, without their bodies."""
    filters.check_names(given, REFUSED)
    limit, source = filters.read_limit(given), given.get("source")

    def query(db: Any) -> Json:
        made = generation(db)
        before = filters.read_cursor(given, made)
        found = refused_list(db, source, filters.LARGEST if before is None else before, limit + 1)
        more = found[limit - 1].n if len(found) > limit else None
        return {
            "refused": [refused_json(one) for one in found[:limit]],
            "next": filters.write_cursor(made, more),
        }

    return query


def refused_request(n: int) -> Query:
    """One request that was turned away, whole."""

    def query(db: Any) -> Json:
        found = refused_one(db, n) if 0 < n <= filters.LARGEST else None
        if found is None:
            raise not_found(f"there is no refused request {n}; they are kept for 7 days, the newest 200 of each source")
        return refused_json(found)

    return query


def body(seq: int, variant: str | None = None) -> Callable[[Any], Body]:
    """The exact bytes of a body; raises Rejected 404 saying whether it was pruned or never there."""
    digest = _digest(variant)

    def query(db: Any) -> Body:
        known = events_by_seq(db, [seq]) if 0 < seq <= filters.LARGEST else []
        if not known:
            raise not_found(f"there is no event {seq}")
        found = event_body(db, seq, digest)
        if found is None and digest is not None:
            raise not_found(f"event {seq} has no variant with this hash")
        if found is None:
            raise not_found(f"the body of event {seq} was {known[0].body}; its id, times and outcome are still known")
        return found

    return query


def _digest(variant: str | None) -> bytes | None:
    try:
        return None if variant is None else bytes.fromhex(variant)
    except ValueError:
        raise filters.bad_request("variant: is the body_hash of a variant, in hex") from None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
