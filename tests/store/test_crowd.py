"""A crowd of senders is noticed, and slices are short beside it."""

from __future__ import annotations

import time

import pytest

from oncebox.model import Claimed
from oncebox.store import Transaction
from oncebox.store.sqlite import SQLiteStore
from store.conftest import NOW, Running, arrival, books_are_right
from store.crowd import sending, until

pytestmark = pytest.mark.anyio


def slow(_claimed: Claimed, _db: Transaction) -> None:
    """Longer than a short slice, and less than half of a long one."""
    end = time.perf_counter() + 0.0015
    while time.perf_counter() < end:
        pass


async def test_many_senders_are_a_crowd_until_they_have_gone(store: SQLiteStore) -> None:
    assert not store.crowded()
    async with sending(store, arrival):
        await until(store.crowded)
        await store.change(lambda _db, _books: None)
        assert store.crowded()
    await until(lambda: not store.crowded())


async def test_a_few_senders_are_never_a_crowd(store: SQLiteStore) -> None:
    async with sending(store, arrival, senders=16) as answered:
        while len(answered) < 500:
            await store.accept([arrival(f"between-{len(answered)}")])
            assert not store.crowded()


async def test_one_request_of_many_events_is_no_crowd(store: SQLiteStore) -> None:
    for round in range(5):
        await store.accept([arrival(f"{round}-{n}") for n in range(300)])
        assert not store.crowded()


@pytest.mark.alone
async def test_slices_are_short_beside_a_crowd_and_hold_one_handler_at_least(store: SQLiteStore) -> None:
    await store.accept([arrival(f"e{n}") for n in range(200)])

    async def slice_of() -> int:
        return len((await store.process(["handler"], Running(slow), lambda: NOW)).settled)

    alone = [await slice_of() for _ in range(5)]
    assert max(alone) >= 2
    async with sending(store, arrival):
        await until(store.crowded)
        beside = [await slice_of() for _ in range(10)]
    assert min(beside) == 1
    assert sorted(beside)[5] == 1
    await books_are_right(store)
