"""Twins: the same call at the same time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncebox import Refuse, Reply, Request, Transaction, operation
from oncebox.perform.answer import CONFLICT, IN_PROGRESS
from oncebox.perform.flight import Flight, Waiters
from oncebox.perform.operation import Operation
from perform.conftest import Box, Got, OpenBox

pytestmark = pytest.mark.anyio


class Slow:
    """An operation that ends when it is told to."""

    def __init__(self, end: Any = None) -> None:
        self.go = asyncio.Event()
        self.entered = asyncio.Event()
        self.count = 0
        self.end = end

    def operation(self, **more: Any) -> Operation[..., Any]:
        @operation("slow", **more)
        async def slow(request: Request) -> object:
            self.count += 1
            self.entered.set()
            await self.go.wait()
            if isinstance(self.end, BaseException):
                raise self.end
            return self.end or Reply(201, {"n": self.count}, headers={"Location": "/slow/1"})

        return slow

    async def first(self, box: Box, body: object = "same", key: str = "k1") -> asyncio.Task[Got]:
        self.entered.clear()
        call = asyncio.ensure_future(box.post("slow", body, key=key))
        await self.entered.wait()
        return call


@pytest.fixture
def slow(anyio_backend: str) -> Slow:
    return Slow()


async def joined(box: Box, count: int) -> None:
    for _ in range(10_000):
        if box.performer.waiters.count >= count:
            return
        await asyncio.sleep(0)
    pytest.fail("nobody waits")


async def turned_away_of(calls: list[asyncio.Task[Got]], count: int) -> tuple[list[Got], set[asyncio.Task[Got]]]:
    """The answers of at least so many, and those that have none yet."""
    answered: list[Got] = []
    waiting = set(calls)
    while len(answered) < count:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        answered += [one.result() for one in done]
    return answered, waiting


async def test_a_twin_waits_for_the_first_and_gets_the_identical_reply(open_box: OpenBox, slow: Slow) -> None:
    async with open_box(slow.operation()) as box:
        first = await slow.first(box)
        twins = [asyncio.ensure_future(box.post("slow", "same")) for _ in range(10)]
        await joined(box, 10)
        slow.go.set()
        got = await first
        assert (got.status, got.replayed) == (201, False)
        for twin in await asyncio.gather(*twins):
            assert (twin.replayed, twin.facts) == (True, got.facts)
        assert slow.count == 1


@pytest.mark.parametrize("end", [Refuse(402, "no money"), ValueError("boom"), Reply(503, "later")])
@pytest.mark.parametrize("retry_safe", [False, True])
async def test_if_the_first_fails_its_twins_get_its_error_and_none_acts_again(
    open_box: OpenBox, slow: Slow, end: Any, retry_safe: bool
) -> None:
    slow.end = end
    async with open_box(slow.operation(retry_safe=retry_safe)) as box:
        first = await slow.first(box)
        twins = [asyncio.ensure_future(box.post("slow", "same")) for _ in range(10)]
        await joined(box, 10)
        slow.go.set()
        got = await first
        assert got.status >= 400
        for twin in await asyncio.gather(*twins):
            assert (twin.replayed, twin.facts) == (False, got.facts)
        assert slow.count == 1


async def test_another_request_under_the_key_of_one_that_runs_is_a_conflict_at_once(
    open_box: OpenBox, slow: Slow
) -> None:
    async with open_box(slow.operation()) as box:
        first = await slow.first(box)
        got = await box.post("slow", "another")
        assert (got.status, got.slug) == (422, "key-conflict")
        other = await slow.first(box, "another", key="k2")
        slow.go.set()
        assert (await first).status == (await other).status == 201


async def test_a_twin_waits_only_so_long(open_box: OpenBox, slow: Slow) -> None:
    async with open_box(slow.operation(), waiters=Waiters(patience=0.05)) as box:
        first = await slow.first(box)
        got = await box.post("slow", "same")
        assert (got.status, got.slug) == (409, "in-progress")
        assert int(got.headers["retry-after"]) > 0
        slow.go.set()
        assert (await first).status == 201
        assert (await box.post("slow", "same")).replayed


async def test_500_twins_of_a_slow_operation_hold_no_more_than_32_waiters(open_box: OpenBox, slow: Slow) -> None:
    async with open_box(slow.operation()) as box:
        first = await slow.first(box)
        twins = [asyncio.ensure_future(box.post("slow", "same")) for _ in range(500)]
        turned_away = 0
        for done in asyncio.as_completed(twins):
            got = await done
            if got.status == 201:
                break
            assert (got.status, got.slug) == (409, "in-progress")
            assert box.performer.waiters.count <= 32
            turned_away += 1
            if turned_away == 468:
                assert box.performer.waiters.count == 32
                slow.go.set()
        assert turned_away == 468
        replies = [twin for twin in await asyncio.gather(*twins) if twin.status == 201]
        assert {twin.facts[2] for twin in replies} == {(await first).body}
        assert len(replies) == 32
        assert slow.count == 1
        assert box.performer.waiters.count == 0


async def test_all_keys_together_hold_no_more_than_256_waiters(open_box: OpenBox, slow: Slow) -> None:
    async with open_box(slow.operation()) as box:
        for n in range(10):
            await slow.first(box, key=f"k{n}")
        twins = [asyncio.ensure_future(box.post("slow", "same", key=f"k{n % 10}")) for n in range(300)]
        await joined(box, 256)
        turned_away, waiting = await turned_away_of(twins, 44)
        assert {one.slug for one in turned_away} == {"in-progress"}
        assert (box.performer.waiters.count, len(waiting)) == (256, 256)
        slow.go.set()
        await asyncio.gather(*twins)
        assert slow.count == 10


async def test_a_waiter_that_hangs_up_makes_room_and_cancels_nothing(open_box: OpenBox, slow: Slow) -> None:
    async with open_box(slow.operation(), waiters=Waiters(per_key=1)) as box:
        first = await slow.first(box)
        twin = asyncio.ensure_future(box.post("slow", "same"))
        await joined(box, 1)
        assert (await box.post("slow", "same")).status == 409
        twin.cancel()
        await asyncio.gather(twin, return_exceptions=True)
        second = asyncio.ensure_future(box.post("slow", "same"))
        await joined(box, 1)
        slow.go.set()
        assert (await second).facts == (await first).facts


async def test_the_true_owner_of_a_key_is_not_refused_beside_a_request_that_conflicts(open_box: OpenBox) -> None:
    @operation("make")
    def make(request: Request, db: Transaction) -> Reply:
        return Reply(201, request.text())

    async with open_box(make) as box:
        first = await box.post("make", "mine")
        for _ in range(20):
            wrong, right = await asyncio.gather(box.post("make", "theirs"), box.post("make", "mine"))
            assert wrong.slug == "key-conflict"
            assert (right.replayed, right.facts) == (True, first.facts)


async def test_different_requests_under_one_new_key_make_one_of_them(open_box: OpenBox) -> None:
    @operation("make")
    def make(request: Request, db: Transaction) -> Reply:
        db.execute("insert into orders (sku) values (?)", (request.text(),))
        return Reply(201, request.text())

    async with open_box(make) as box:
        for key in range(20):
            got = await asyncio.gather(*(box.post("make", f"{key}-{n % 3}", key=f"k{key}") for n in range(9)))
            made = {one.body for one in got if one.status == 201}
            assert len(made) == 1
            assert sum(one.status == 201 for one in got) == 3
            assert {one.slug for one in got if one.status != 201} == {"key-conflict"}
        assert await box.rows("select count(*) from orders") == [(20,)]


async def test_a_refused_first_leaves_the_key_to_another_request_that_came_meanwhile(open_box: OpenBox) -> None:
    @operation("make")
    def make(request: Request, db: Transaction) -> Reply:
        if "bad" in request.text():
            raise Refuse(422, "no")
        return Reply(201, request.text())

    async with open_box(make) as box:
        bad, good = await asyncio.gather(box.post("make", "bad"), box.post("make", "good"))
        assert (bad.slug, good.status) == ("blank", 201)


async def test_other_requests_that_wait_hold_no_more_than_so_many_bytes_in_all(anyio_backend: str) -> None:
    waiters, flight = Waiters(patience=5, held=10), Flight(b"first")
    first = asyncio.ensure_future(waiters.judge(flight, 8))
    await asyncio.sleep(0)
    assert (waiters.count, waiters.held) == (1, 8)
    assert await waiters.judge(flight, 3) is IN_PROGRESS
    second = asyncio.ensure_future(waiters.judge(flight, 2))
    await asyncio.sleep(0)
    flight.own()
    assert await first is CONFLICT
    assert await second is CONFLICT
    assert (waiters.count, waiters.held, flight.waiting) == (0, 0, 0)


async def test_one_request_larger_than_that_may_wait(anyio_backend: str) -> None:
    waiters, flight = Waiters(patience=5, held=10), Flight(b"first")
    only = asyncio.ensure_future(waiters.judge(flight, 1000))
    await asyncio.sleep(0)
    flight.land(IN_PROGRESS)
    assert await only is None
