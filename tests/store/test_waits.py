"""What waits when the clock is set back."""

from __future__ import annotations

import pytest

from oncebox.store.sqlite import SQLiteStore
from oncebox.store.waits import bring_forward, bring_forward_from
from store.conftest import NOW, Open, arrival, books_are_right, ended, rows

pytestmark = pytest.mark.anyio
HOUR = 3_600_000_000


async def test_what_is_due_later_is_due_so_much_earlier_and_the_rest_as_before(store: SQLiteStore) -> None:
    await store.accept([arrival(f"evt_{n}", at=NOW) for n in range(3)])
    [one] = await store.claim("handler", 1, NOW)
    await store.settle(ended(one, "pending", due=NOW + 2 * HOUR))
    moved = await store.change(lambda db, _: bring_forward(db, HOUR, NOW))
    assert moved == 1
    assert await rows(store, "select due from v_deliveries order by seq") == [(NOW + HOUR,), (NOW,), (NOW,)]
    await books_are_right(store)


async def test_a_suspect_that_rests_is_brought_forward_too(open_any: Open) -> None:
    async with open_any() as store:
        await store.accept([arrival("evt_1", at=NOW)])
        await store.claim("handler", 1, NOW)
    async with open_any() as store:
        await store.recover(["handler"], NOW)
        assert await store.claim_suspect(["handler"], NOW - HOUR) is None
        await store.change(lambda db, _: bring_forward(db, HOUR, NOW - HOUR))
        assert await store.claim_suspect(["handler"], NOW - HOUR) is not None


async def test_at_the_start_the_newest_event_tells_by_how_much(store: SQLiteStore) -> None:
    assert await store.change(lambda db, _: bring_forward_from(db, NOW)) == 0
    await store.accept([arrival("evt_1", at=NOW)])
    assert await store.change(lambda db, _: bring_forward_from(db, NOW)) == 0
    assert await store.change(lambda db, _: bring_forward_from(db, NOW - HOUR)) == HOUR
    assert len(await store.claim("handler", 1, NOW - HOUR)) == 1


async def test_what_is_hurried_up_is_due_now_also_if_it_came_at_a_later_time(store: SQLiteStore) -> None:
    await store.accept([arrival("evt_1", at=NOW)])
    [one] = await store.claim("handler", 1, NOW)
    await store.settle(ended(one, "pending", due=NOW + HOUR))
    await store.hasten("handler", [one.event.seq], NOW - HOUR)
    assert len(await store.claim("handler", 1, NOW - HOUR)) == 1


async def test_what_is_given_back_is_due_at_once_also_by_a_clock_that_was_set_back_meanwhile(
    store: SQLiteStore,
) -> None:
    await store.accept([arrival("evt_1", at=NOW)])
    taken = await store.claim("handler", 1, NOW)
    assert await store.change(lambda db, _: bring_forward(db, HOUR, NOW - HOUR)) == 0
    await store.release(taken, NOW - HOUR)
    assert len(await store.claim("handler", 1, NOW - HOUR)) == 1
    await books_are_right(store)
