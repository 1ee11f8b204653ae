"""Stops and deaths: what a process leaves behind, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from drain.conftest import Clock, OpenBox, OpenQuiet, Rows, arrival, collected
from drain.test_drain import tables, until, write
from oncebox import Event, Transaction, on
from oncebox.drain.drain import Drain
from oncebox.drain.handler import Handler
from oncebox.store.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio


async def left_running(store: SQLiteStore, target: str, *ids: str) -> None:
    """As if the process had died in the middle of these: claimed, never settled."""
    await store.accept([arrival(id, at=Clock()()) for id in ids])
    await store.claim(target, len(ids), Clock()())


async def after(open_box: OpenBox) -> Rows:
    async with open_box() as box:
        return await box.rows("select state, attempts, suspect, alone from deliveries order by seq")


async def test_what_a_dead_process_left_running_is_run_alone_and_before_anything_else(
    open_box: OpenBox, open_quiet: OpenQuiet
) -> None:
    running = 0
    order: list[tuple[str, int]] = []

    @on("demo", concurrency=8)
    async def work(event: Event) -> None:
        nonlocal running
        running += 1
        await anyio.sleep(0.005)
        order.append((event.id, running))
        running -= 1

    async with open_quiet(work) as store:
        await left_running(store, "work", "s1", "s2", "s3")
        await store.accept([arrival(f"e{n}", at=Clock()()) for n in range(8)])
    async with open_box(work) as box:
        await box.settle()
        assert await box.rows("select distinct state from v_deliveries") == [("done",)]
    assert order[:3] == [("s1", 1), ("s2", 1), ("s3", 1)]
    assert max(beside for _, beside in order[3:]) > 1


async def test_a_transactional_suspect_runs_in_a_transaction_of_its_own(
    open_box: OpenBox, open_quiet: OpenQuiet
) -> None:
    async with open_quiet(write) as store:
        await left_running(store, "write", "s1", "s2")
        await store.accept([arrival("e", at=Clock()())])
    async with open_box(tables, write) as box:
        await box.settle()
        assert await box.rows("select id from effects") == [("s1",), ("s2",), ("e",)]
        assert await box.states() == [("e", "done", 1, "ok"), ("s1", "done", 2, "ok"), ("s2", "done", 2, "ok")]


async def test_a_suspect_that_is_due_later_runs_alone_when_its_time_comes(
    open_box: OpenBox, open_quiet: OpenQuiet, clock: Clock
) -> None:
    order: list[str] = []
    hold = asyncio.Event()

    @on("demo", concurrency=8)
    async def work(event: Event) -> None:
        order.append(f"{event.id} starts")
        if event.id == "slow":
            await hold.wait()
        order.append(f"{event.id} ends")

    # Two deaths, the second one while alone: it rests for a moment before its last chance.
    async with open_quiet(work) as store:
        await left_running(store, "work", "s")
    async with open_quiet(work) as store:
        await store.recover(["work"], clock())
        assert await store.claim_suspect(["work"], clock())
    async with open_box(work) as box:
        await box.receive("slow")
        await until(lambda: order == ["slow starts"])
        box.clock.move(60)
        box.drain.wake()
        await until(lambda: box.drain._shared.gate.closed)
        await box.receive("e")
        hold.set()
        await box.settle()
    assert order == ["slow starts", "slow ends", "s starts", "s ends", "e starts", "e ends"]


async def test_a_stop_lets_running_handlers_end(open_box: OpenBox) -> None:
    started = asyncio.Event()
    release = asyncio.Event()

    @on("demo")
    async def work(event: Event) -> None:
        started.set()
        await release.wait()

    async with open_box(work) as box:
        await box.receive("a")
        await started.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(box.drain.stop, 20)
            await until(lambda: not box.drain.alive())
            await box.receive("b")
            release.set()
        assert await box.states() == [("a", "done", 1, "ok"), ("b", "pending", 0, None)]
        assert box.drain.trouble() == ["drain: not running"]


@pytest.mark.parametrize("kind", ["async", "stubborn", "blocking"])
async def test_a_stop_gives_back_what_does_not_end_in_time_and_the_attempt_does_not_count(
    open_box: OpenBox, kind: str
) -> None:
    started, let_go = threading.Event(), threading.Event()
    ended = asyncio.Event()

    async def work(_event: Event) -> None:
        started.set()
        await anyio.sleep_forever()

    async def stubborn(_event: Event) -> None:
        started.set()
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue
        ended.set()

    def blocking(_event: Event) -> None:
        started.set()
        let_go.wait(20)

    handler: Handler[..., Any] = on("demo", name="work")(
        {"async": work, "stubborn": stubborn, "blocking": blocking}[kind]
    )
    async with open_box(handler, grace=0.01) as box:
        await box.receive("a")
        await until(started.is_set)
    let_go.set()
    if kind == "stubborn":
        await ended.wait()
    assert await after(open_box) == [("pending", 0, 0, 0)]


async def test_a_handler_that_ends_its_work_when_it_is_cancelled_by_a_stop_is_done(open_box: OpenBox) -> None:
    started = asyncio.Event()

    @on("demo")
    async def careful(event: Event) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)

    async with open_box(careful, grace=0) as box:
        await box.receive("a")
        await started.wait()
    assert await after(open_box) == [("done", 1, 0, 0)]


async def test_a_drain_that_is_cancelled_winds_down_too(open_quiet: OpenQuiet, open_box: OpenBox) -> None:
    started = asyncio.Event()

    @on("demo")
    async def work(event: Event) -> None:
        started.set()
        await anyio.sleep_forever()

    async with open_quiet(work) as store, running(store, work) as scope:
        await store.accept([arrival("a", at=1)])
        await started.wait()
        scope.cancel()
    assert await after(open_box) == [("pending", 0, 0, 0)]


@asynccontextmanager
async def running(store: SQLiteStore, *handlers: Handler[..., Any]) -> AsyncIterator[anyio.CancelScope]:
    drain = Drain(store, collected(handlers), now=Clock())
    async with anyio.create_task_group() as group:
        group.start_soon(drain.run)
        await until(drain.alive)
        await store.read(lambda _db: None)
        drain.wake()
        yield group.cancel_scope


async def test_a_stop_in_the_middle_of_many_counts_no_attempt_that_did_not_run(open_box: OpenBox) -> None:
    ran: list[str] = []

    @on("demo")
    def tick(event: Event, db: Transaction) -> None:
        ran.append(event.id)

    async with open_box(tick) as box:
        await box.receive(*(f"e{n:04}" for n in range(2_000)))
        await until(lambda: len(ran) > 100)
    async with open_box() as box:
        assert await box.rows("select count(*) from deliveries where state = 'running'") == [(0,)]
        assert await box.rows("select count(*), sum(attempts) from deliveries where state = 'done'") == [
            (len(ran), len(ran))
        ]
        assert await box.rows("select sum(attempts), max(suspect) from deliveries where state <> 'done'") == [(0, 0)]
