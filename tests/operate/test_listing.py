"""The list of events: every filter against a plain reading of the same history."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from oncebox.store import listing
from oncebox.store.listing import Page, Selection, list_events
from oncebox.store.sqlite import SQLiteStore
from operate.conftest import NOW, SECOND, arrival, ended

pytestmark = pytest.mark.anyio


async def history(store: SQLiteStore) -> None:
    """Sixty events: three sources, four types, all states."""
    choice = random.Random(7)
    arrivals = []
    for number in range(60):
        body = f'{{"n": {number}, "said": "näh {number % 5}"}}'.encode()
        packed = number % 7 == 0
        arrivals.append(
            arrival(
                f"evt_{number}",
                source=choice.choice(["demo", "stripe", "rare%_"]),
                type=choice.choice(["invoice.paid", "invoice.failed", "ordered", "lost", None]),
                body=gzip.compress(body) if packed else body,
                encoding="gzip" if packed else None,
                at=NOW + number * SECOND,
            )
        )
    await store.accept(arrivals)
    claimed = await store.claim("handler", 12, NOW + 100 * SECOND)
    for index, one in enumerate(claimed):
        if index % 3 < 2:
            await store.settle(ended(one, "dead" if index % 3 else "done", error="broken" if index % 3 else None))


async def walk(store: SQLiteStore, patience: float = 10.0, **filters: Any) -> list[int]:
    """All pages, one after the other."""
    seqs: list[int] = []
    before: int | None = None
    for _ in range(1000):
        wanted = Selection(before=before, limit=filters.pop("limit", 7), **filters)
        page: Page = await store.read(partial(list_events, wanted=wanted, patience=patience))
        seqs += [event.seq for event in page.events]
        before = page.next
        if before is None:
            return seqs
    raise AssertionError("the list has no end")


Expected = Callable[[Any], bool]


def in_state(state: str) -> Expected:
    return lambda event: any(one.state == state for one in event.deliveries)


FILTERS: list[tuple[dict[str, Any], Expected]] = [
    ({}, lambda event: True),
    ({"source": "demo"}, lambda event: event.source == "demo"),
    ({"source": "rare%_"}, lambda event: event.source == "rare%_"),
    ({"source": "nobody"}, lambda event: False),
    ({"type": "invoice.paid"}, lambda event: event.type == "invoice.paid"),
    ({"type": "invoice.*"}, lambda event: (event.type or "").startswith("invoice.")),
    ({"type": "[!i]*"}, lambda event: event.type in ("ordered", "lost")),
    ({"type": "*"}, lambda event: True),
    ({"state": "pending"}, in_state("pending")),
    ({"state": "parked"}, in_state("parked")),
    ({"state": "running"}, in_state("running")),
    ({"state": "done"}, in_state("done")),
    ({"state": "dead"}, in_state("dead")),
    ({"state": "unrouted"}, lambda event: not event.deliveries),
    ({"state": "unrouted", "source": "demo"}, lambda event: not event.deliveries and event.source == "demo"),
    ({"state": "dead", "type": "invoice.*"}, lambda e: in_state("dead")(e) and (e.type or "").startswith("invoice.")),
    ({"since": NOW + 40 * SECOND}, lambda event: event.received_at >= NOW + 40 * SECOND),
    ({"until": NOW + 9 * SECOND}, lambda event: event.received_at <= NOW + 9 * SECOND),
    ({"since": NOW + 20 * SECOND, "until": NOW + 30 * SECOND}, lambda e: 20 <= (e.received_at - NOW) // SECOND <= 30),
    ({"since": NOW + 20 * SECOND, "type": "lost"}, lambda e: e.received_at >= NOW + 20 * SECOND and e.type == "lost"),
    ({"q": "evt_1"}, lambda event: "evt_1" in event.id),
    ({"q": "VOICE.F"}, lambda event: "voice.f" in (event.type or "")),
    ({"q": "%"}, lambda event: False),
    ({"body": "näh 3".encode()}, lambda event: (event.seq - 1) % 5 == 3),
    ({"body": b'"n": 7,'}, lambda event: event.seq == 8),
    ({"body": "näh 3".encode(), "source": "demo"}, lambda event: (event.seq - 1) % 5 == 3 and event.source == "demo"),
]


@pytest.mark.parametrize(("filters", "fits"), FILTERS, ids=lambda value: str(value) if isinstance(value, dict) else "")
@pytest.mark.parametrize(("patience", "small"), [(10.0, False), (10.0, True), (0.0, True)])
async def test_pages_hold_every_event_that_fits_once_and_newest_first(
    store: SQLiteStore,
    monkeypatch: pytest.MonkeyPatch,
    filters: dict[str, Any],
    fits: Expected,
    patience: float,
    small: bool,
) -> None:
    """With small windows, nothing called rare and even without any time, pages come short, and the end is the same."""
    await history(store)
    everything = await store.read(lambda db: list_events(db, Selection(limit=500)).events)
    assert [event.seq for event in everything] == list(range(60, 0, -1))
    if small:
        monkeypatch.setattr(listing, "RARE", 0)
        monkeypatch.setattr(listing, "SMALLEST", 3)
        monkeypatch.setattr(listing, "START", 4)
        monkeypatch.setattr(listing, "WIDEST", 5)
    found = await walk(store, patience, **filters)
    assert found == [event.seq for event in everything if fits(event)]


async def test_a_full_page_at_the_very_end_has_no_next_page(store: SQLiteStore) -> None:
    await store.accept([arrival("a"), arrival("b")])
    page = await store.read(lambda db: list_events(db, Selection(limit=2)))
    assert [event.seq for event in page.events] == [2, 1]
    assert page.next is None


async def test_an_empty_file_has_an_empty_list(store: SQLiteStore) -> None:
    for state in (None, *listing.STATES):
        page = await store.read(partial(list_events, wanted=Selection(state=state)))
        assert (page.events, page.next) == ([], None)


async def test_a_clock_that_was_set_back_hides_no_event_of_the_last_hour(store: SQLiteStore) -> None:
    times = [NOW, NOW + 1800 * SECOND, NOW + 60 * SECOND, NOW + 120 * SECOND]
    for number, at in enumerate(times):
        await store.accept([arrival(f"evt_{number}", at=at)])
    assert await walk(store, since=NOW + 1000 * SECOND) == [2]
    assert await walk(store, until=NOW + 90 * SECOND) == [3, 1]


async def test_the_index_of_open_deliveries_is_used_for_dead_ones(store: SQLiteStore) -> None:
    """A plan that walks all deliveries would be right and far too slow."""
    where = "state in ('parked', 'running', 'dead') and state = 'dead'"
    plan = await store.read(
        lambda db: db.execute(
            f"explain query plan select seq from deliveries indexed by deliveries_open where {where} "
            "and target = ? and seq < ? order by seq desc limit ?",
            ("handler", 9, 9),
        ).fetchall()
    )
    assert "SEARCH deliveries USING COVERING INDEX deliveries_open" in str(plan)
