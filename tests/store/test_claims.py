"""What one claim takes: some megabytes at most, nothing of a paused target, and past what cannot be read."""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from oncebox.model import Arrival, Claimed, Planned
from oncebox.store import Batch, Transaction, claims
from oncebox.store.books import Books
from oncebox.store.catch import MOST
from oncebox.store.sqlite import SQLiteStore, open_store
from store.conftest import NOW, Open, Running, arrival, books_are_right, drain, rows
from store.test_process import Portions, with_payments

pytestmark = pytest.mark.anyio

MEGABYTE = 1 << 20


async def fill(store: SQLiteStore, ids: Sequence[str], body: bytes = b"{}", source: str = "demo") -> None:
    """One at a time, so that none waits for want of memory."""
    for id in ids:
        await store.accept([arrival(id, body, source)])


def ids(batch: Sequence[Claimed]) -> list[str]:
    return [one.event.id for one in batch]


async def everything(store: SQLiteStore, limit: int) -> list[Batch]:
    """All that is due, claim by claim: one that is short and not cut is the last."""
    batches: list[Batch] = []
    while not batches or batches[-1].cut or len(batches[-1]) == limit:
        batches.append(await store.claim("handler", limit, NOW))
    return batches


async def test_a_claim_ends_after_some_megabytes_and_says_so(store: SQLiteStore) -> None:
    names = [f"e{n}" for n in range(10)]
    await fill(store, names, bytes(MEGABYTE))
    batches = await everything(store, 64)
    assert [ids(batch) for batch in batches] == [names[:4], names[4:8], names[8:]]
    assert [batch.cut for batch in batches] == [True, True, False]
    assert await rows(store, "select state, count(*) from deliveries group by 1") == [("running", 10)]
    await books_are_right(store)


async def test_a_body_that_is_larger_than_a_claim_may_be_comes_alone(store: SQLiteStore) -> None:
    await fill(store, ["a", "b"], bytes(MOST + 1))
    await fill(store, ["c"])
    assert [ids(batch) for batch in await everything(store, 64)] == [["a"], ["b"], ["c"]]


async def test_a_claim_counts_what_a_body_becomes_when_it_is_decoded(store: SQLiteStore) -> None:
    packed = gzip.compress(bytes(MEGABYTE))
    for n in range(8):
        await store.accept([msgspec.structs.replace(arrival(f"e{n}", packed), encoding="gzip")])
    assert [len(batch) for batch in await everything(store, 64)] == [4, 4, 0]


async def test_a_claim_that_has_all_the_rows_it_wanted_is_not_cut(store: SQLiteStore) -> None:
    await fill(store, [f"e{n}" for n in range(5)], bytes(MEGABYTE))
    assert not (await store.claim("handler", 4, NOW)).cut
    assert not (await store.claim("handler", 4, NOW)).cut


async def test_after_a_claim_that_large_bodies_cut_short_the_other_source_is_first(store: SQLiteStore) -> None:
    await fill(store, [f"a{n}" for n in range(9)], bytes(MEGABYTE), "a")
    await fill(store, ["b0"], source="b")
    first, second = await store.claim("handler", 64, NOW), await store.claim("handler", 64, NOW)
    assert ids(first) == ["a0", "a1", "a2", "a3"]
    assert ids(second)[0] == "b0"


async def test_what_waits_for_the_next_slice_is_some_megabytes_of_all_targets_together(open_any: Open) -> None:
    def both(_arrival: Arrival) -> Sequence[Planned]:
        return (Planned("one"), Planned("two"))

    def look(_claimed: Claimed, db: Transaction) -> None:
        running.append(db.execute("select target from v_deliveries where state = 'running'"))

    running: list[list[tuple[str]]] = []
    async with open_any(router=both) as store:
        await fill(store, [f"e{n}" for n in range(12)], bytes(MEGABYTE))
        settled = await drain(store, Running(look), ["one", "two"])
        assert len(settled) == 24
        assert sorted(running[0]) == [("one",), ("one",), ("two",), ("two",)]
        assert max(map(len, running)) <= 4
        await books_are_right(store)


async def test_a_claim_that_was_asked_for_before_a_pause_and_has_its_turn_after_it_takes_nothing(
    store: SQLiteStore,
) -> None:
    begun, asked = threading.Event(), threading.Event()

    def pause(db: sqlite3.Connection, _books: Books) -> None:
        store.pauses.add(db, "handler", "why", NOW)
        begun.set()
        assert asked.wait(10)

    await store.accept([arrival()])
    await store.change(lambda db, _: db.execute("update deliveries set suspect = 1 where seq = 1"))
    await store.accept([arrival("evt_2")])
    pausing = asyncio.ensure_future(store.change(pause))
    await asyncio.to_thread(begun.wait, 10)
    assert not store.is_paused("handler")
    claiming = asyncio.ensure_future(store.claim("handler", 9, NOW))
    alone = asyncio.ensure_future(store.claim_suspect(["handler"], NOW))
    due = asyncio.ensure_future(store.next_due(["handler"]))
    await asyncio.sleep(0)
    asked.set()
    await pausing
    assert (await claiming, await alone, await due) == ([], None, None)
    assert store.is_paused("handler")
    assert await store.resume("handler")
    assert not store.is_paused("handler")
    assert ids(await store.claim("handler", 9, NOW)) == ["evt_2"]


async def test_a_pause_that_is_not_written_does_not_hold_and_neither_does_its_end(store: SQLiteStore) -> None:
    def pause(db: sqlite3.Connection, _books: Books) -> None:
        store.pauses.add(db, "handler", "another", NOW)
        raise OSError("the disk")

    def resume(db: sqlite3.Connection, _books: Books) -> None:
        store.pauses.remove(db, "handler")
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        await store.change(pause)
    await store.change(lambda _db, _books: None)
    assert (store.is_paused("handler"), await store.paused()) == (False, {})
    await store.pause("handler", "why", NOW)
    with pytest.raises(OSError, match="the disk"):
        await store.change(resume)
    await store.change(lambda _db, _books: None)
    assert (store.is_paused("handler"), await store.paused()) == (True, {"handler": "why"})


async def test_a_suspect_of_a_transactional_target_that_is_paused_meanwhile_is_given_back(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    await store.change(lambda db, _: db.execute("update deliveries set suspect = 1"))
    suspect = await store.claim_suspect(["handler"], NOW)
    assert suspect is not None
    await store.pause("handler", "why", NOW)
    runner = Running(lambda _claimed, _db: None)
    assert (await store.process_alone(suspect, runner, lambda: NOW)).settled == []
    assert runner.seen == []
    assert await rows(store, "select state, attempts, suspect from deliveries") == [("pending", 0, 1)]
    await books_are_right(store)


async def lose(store: SQLiteStore, below: int) -> None:
    """The first events lose their bodies."""
    await store.change(lambda db, _: db.execute("delete from payloads where seq < ?", (below,)))


async def test_a_claim_goes_on_past_what_cannot_be_read(store: SQLiteStore) -> None:
    await store.accept([arrival(f"e{n}") for n in range(50)])
    await lose(store, 41)
    batch = await store.claim("handler", 4, NOW)
    assert (ids(batch), batch.cut) == (["e40", "e41", "e42", "e43"], False)
    assert await rows(store, "select state, count(*) from deliveries group by 1 order by 1") == [
        ("dead", 40),
        ("pending", 6),
        ("running", 4),
    ]
    await books_are_right(store)


async def test_one_claim_sets_so_many_aside_and_then_is_cut(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ASIDE", 10)
    await store.accept([arrival(f"e{n}") for n in range(25)])
    await lose(store, 25)
    batches = await everything(store, 4)
    assert [(ids(batch), batch.cut) for batch in batches] == [([], True), ([], True), (["e24"], False)]


async def test_what_cannot_be_read_uses_up_no_share(store: SQLiteStore) -> None:
    await store.accept([arrival(f"e{n}") for n in range(9)])
    await lose(store, 4)
    assert ids(await store.claim("handler", 8, NOW, share=Portions({"demo": 2}))) == ["e3", "e4"]


async def test_a_suspect_that_cannot_be_read_does_not_hold_up_the_next(store: SQLiteStore) -> None:
    await store.accept([arrival(f"e{n}") for n in range(4)])
    await store.change(lambda db, _: db.execute("update deliveries set suspect = 1"))
    await lose(store, 4)
    suspect = await store.claim_suspect(["handler"], NOW)
    assert suspect is not None
    assert suspect.event.id == "e3"
    await books_are_right(store)


async def test_the_next_in_order_behind_one_that_cannot_be_read_comes_with_the_same_claim(database: Path) -> None:
    def by_key(_arrival: Arrival) -> Sequence[Planned]:
        return (Planned("handler", "key"),)

    async with open_store(database, router=by_key, skipping=frozenset({"handler"})) as store:
        await store.accept([arrival(f"e{n}") for n in range(4)])
        await lose(store, 3)
        assert ids(await store.claim("handler", 1, NOW)) == ["e2"]


async def test_transactional_handlers_go_on_past_what_cannot_be_read(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ASIDE", 10)
    await store.accept([arrival(f"e{n}") for n in range(210)])
    await lose(store, 201)
    assert len(await drain(store, Running(lambda _claimed, _db: None))) == 10


async def test_what_a_source_leaves_goes_to_any_other(store: SQLiteStore) -> None:
    await fill(store, [f"a{n}" for n in range(12)], source="a")
    await fill(store, ["b"], source="b")
    await store.accept([arrival("c", source="c", at=NOW + 1)])
    assert sorted(ids(await store.claim("handler", 8, NOW))) == sorted(["b", *[f"a{n}" for n in range(7)]])
    assert ids(await store.claim("handler", 8, NOW)) == [f"a{n}" for n in range(7, 12)]
    await books_are_right(store)
