"""A target that several sources share: one that hangs, or a rerun, leaves the others a slot."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from drain.conftest import OpenBox
from drain.delivering import Inbox, delivering, posting, wall
from drain.receiver import Answer, Receiver, Request, receiving
from oncebox.drain.handler import on
from oncebox.model import Event
from oncebox.store.choice import Picked
from oncebox.store.reruns import HISTORY, put_back

pytestmark = [pytest.mark.anyio, pytest.mark.alone]

SOON = 0.05
SOURCES = ("good", "hang-a", "hang-b")


class Shop:
    """Answers the good source at once and lets the others wait until it is closed; knows when events came."""

    def __init__(self) -> None:
        self.came: dict[str, float] = {}
        self.closed = asyncio.Event()
        self.hangs = True

    async def behave(self, request: Request) -> Answer:
        self.came[request.id] = time.monotonic()
        if self.hangs and request.id.startswith("hang"):
            await self.closed.wait()
        return Answer()


@asynccontextmanager
async def sharing(path: Path, **more: object) -> AsyncIterator[tuple[Inbox, Receiver, Shop]]:
    shop = Shop()
    async with (
        receiving(shop.behave) as receiver,
        delivering(path / "a.db", posting(receiver.url, **more), reach=SOURCES) as inbox,
    ):
        try:
            yield inbox, receiver, shop
        finally:
            shop.closed.set()


async def waits(inbox: Inbox, shop: Shop, count: int, *, since: int = 0) -> list[float]:
    """How long each of so many events of the good source takes to get there, one after the other."""
    found = []
    for n in range(since, since + count):
        begin = time.monotonic()
        await inbox.receive(f"good{n}", source="good")
        await inbox.until(lambda n=n: f"good{n}" in shop.came, 3)  # type: ignore[misc]
        found.append(shop.came[f"good{n}"] - begin)
    return found


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@pytest.mark.parametrize("slots", [2, 4, 16])
async def test_a_source_that_hangs_leaves_the_others_a_slot_of_the_same_target(tmp_path: Path, slots: int) -> None:
    async with sharing(tmp_path, concurrency=slots, timeout=5.0) as (inbox, receiver, shop):
        await inbox.receive(*(f"hang{n}" for n in range(200)), source="hang-a")
        await inbox.until(lambda: receiver.in_flight > 0)
        found = await waits(inbox, shop, 40)
        assert median(found) < SOON
        assert receiver.in_flight <= slots - 1
        assert receiver.most <= slots


@pytest.mark.parametrize("slots", [3, 4, 8])
async def test_two_sources_that_hang_leave_the_third_a_slot(tmp_path: Path, slots: int) -> None:
    async with sharing(tmp_path, concurrency=slots, timeout=5.0) as (inbox, receiver, shop):
        for source in ("hang-a", "hang-b"):
            await inbox.receive(*(f"{source}{n}" for n in range(100)), source=source)
        await inbox.until(lambda: receiver.in_flight > 1)
        assert median(await waits(inbox, shop, 40)) < SOON
        assert receiver.most <= slots


async def test_sources_that_time_out_again_and_again_never_get_the_last_slot(tmp_path: Path) -> None:
    async with sharing(tmp_path, concurrency=4, timeout=0.1) as (inbox, receiver, shop):
        for source in ("hang-a", "hang-b"):
            await inbox.receive(*(f"{source}{n}" for n in range(4)), source=source)
        await inbox.until(lambda: receiver.in_flight > 1)
        found: list[float] = []
        for n in range(100):
            found += await waits(inbox, shop, 1, since=n)
            await anyio.sleep(0.005)
        assert median(found) < SOON


async def test_what_a_quick_source_has_claimed_in_advance_holds_up_nobody_when_it_hangs(tmp_path: Path) -> None:
    async with sharing(tmp_path, concurrency=4, timeout=5.0) as (inbox, receiver, shop):
        shop.hangs = False
        for start in range(0, 1500, 250):
            await inbox.receive(*(f"hang{n}" for n in range(start, start + 250)), source="hang-a")
        await inbox.until(lambda: len(shop.came) > 500)
        shop.hangs = True
        assert len(shop.came) < 1400
        await inbox.until(lambda: receiver.in_flight == 3)
        assert median(await waits(inbox, shop, 30)) < SOON
        assert receiver.most <= 4


async def test_a_source_that_shares_its_target_with_nobody_has_all_slots(tmp_path: Path) -> None:
    shop = Shop()
    async with (
        receiving(shop.behave) as receiver,
        delivering(tmp_path / "a.db", posting(receiver.url, concurrency=4), reach=("hang-a",)) as inbox,
    ):
        await inbox.receive(*(f"hang{n}" for n in range(8)), source="hang-a")
        await inbox.until(lambda: receiver.in_flight == 4)
        shop.closed.set()
        await inbox.idle()


async def test_sources_that_all_have_a_slot_share_all_of_them(tmp_path: Path) -> None:
    shop = Shop()
    async with (
        receiving(shop.behave) as receiver,
        delivering(tmp_path / "a.db", posting(receiver.url, concurrency=4), reach=("hang-a", "hang-b")) as inbox,
    ):
        for source in ("hang-a", "hang-b"):
            await inbox.receive(*(f"{source}{n}" for n in range(8)), source=source)
        await inbox.until(lambda: receiver.in_flight == 4)
        shop.closed.set()
        await inbox.idle()


async def test_a_rerun_leaves_a_slot_for_new_events_although_one_source_has_the_target_alone(tmp_path: Path) -> None:
    shop = Shop()
    shop.hangs = False
    async with (
        receiving(shop.behave) as receiver,
        delivering(tmp_path / "a.db", posting(receiver.url, concurrency=4), reach=("good",)) as inbox,
    ):
        await inbox.receive(*(f"hang{n}" for n in range(100)), source="good")
        await inbox.idle()
        shop.hangs = True
        await rerun(inbox, range(1, 101))
        await inbox.until(lambda: receiver.in_flight > 0)
        assert median(await waits(inbox, shop, 30)) < SOON
        assert 0 < receiver.in_flight < 4
        shop.closed.set()
        await inbox.idle()
        assert receiver.acknowledged["hang7"] == 2


async def rerun(inbox: Inbox, seqs: range) -> None:
    await inbox.store.change(
        lambda db, books: [
            put_back(db, Picked(seq, "hook", 1, None), None, HISTORY, wall(), books, frozenset()) for seq in seqs
        ]
    )
    inbox.drain.wake()


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_a_source_that_hangs_in_a_handler_leaves_the_others_a_slot(open_box: OpenBox, kind: str) -> None:
    ran: dict[str, float] = {}
    let_go = threading.Event()

    @on("*", name="shared", concurrency=4, timeout=20)
    async def waiting(event: Event) -> None:
        if event.source == "hang":
            await asyncio.Event().wait()
        ran[event.id] = time.monotonic()

    @on("*", name="shared", concurrency=4, timeout=20)
    def blocking(event: Event) -> None:
        if event.source == "hang":
            let_go.wait(20)
        ran[event.id] = time.monotonic()

    handler = waiting if kind == "async" else blocking
    async with open_box(handler, grace=0.1, reach={"shared": {"hang", "good"}}) as box:
        try:
            await box.receive(*(f"h{n}" for n in range(50)), source="hang")
            found = []
            for n in range(30):
                begin = time.monotonic()
                await box.receive(f"g{n}", source="good")
                await until(lambda n=n: f"g{n}" in ran)  # type: ignore[misc]
                found.append(ran[f"g{n}"] - begin)
            assert median(found) < SOON
            assert (await box.rows("select count(*) from deliveries where state = 'running' and source = 'hang'"))[0][
                0
            ] in (2, 3)
        finally:
            let_go.set()


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not holds():  # noqa: ASYNC110  # what it waits for is the doing of others
            await anyio.sleep(0.002)


@pytest.mark.parametrize("history", [False, True])
async def test_a_quick_target_that_becomes_slow_keeps_nothing_new_waiting(tmp_path: Path, history: bool) -> None:
    shop = Shop()
    shop.hangs = False

    async def behave(request: Request) -> Answer:
        await anyio.sleep(0.02 if slow else 0)
        return await shop.behave(request)

    slow = False
    async with (
        receiving(behave) as receiver,
        delivering(tmp_path / "a.db", posting(receiver.url, concurrency=4), reach=SOURCES) as inbox,
    ):
        for start in range(0, 1500, 250):
            await inbox.receive(*(f"old{n}" for n in range(start, start + 250)), source="hang-a")
        if history:
            await inbox.idle()
            shop.came.clear()
            await rerun(inbox, range(1, 1501))
        await inbox.until(lambda: len(shop.came) > 600)
        slow = True
        assert len(shop.came) < 1400
        assert sorted(await waits(inbox, shop, 40))[35] < SOON
        assert receiver.most <= 4


async def test_beside_a_busy_source_one_that_hangs_delays_nobody_either(tmp_path: Path) -> None:
    async with sharing(tmp_path, concurrency=4, timeout=5.0) as (inbox, _, shop):
        shop.hangs = False
        found: list[float] = []
        for start in range(0, 1500, 250):
            await inbox.receive(*(f"hang{n}" for n in range(start, start + 250)), source="hang-a")
            await inbox.receive(*(f"busy{n}" for n in range(start, start + 250)), source="hang-b")
        await inbox.until(lambda: len(shop.came) > 500)
        shop.hangs = True
        assert len(shop.came) < 2500
        found = await waits(inbox, shop, 10)
        assert sorted(found)[8] < SOON
        await inbox.until(lambda: sum(id.startswith("busy") for id in shop.came) == 1500, 5)
