"""`GET /api/stream`: what happens is told as it happens, to any number of listeners."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar
from litestar.testing import AsyncTestClient

from oncebox.config import Config
from oncebox.operate import stream as streams
from oncebox.operate.api import create_api
from oncebox.operate.failure import EXCEPTION_HANDLERS
from oncebox.operate.stream import STILL_HERE, Stream, among, create_stream_routes
from oncebox.recent import MOST, Recent
from oncebox.store.sqlite import SQLiteStore
from operate.conftest import NOW, SECOND, Caller, arrival, ended

pytestmark = pytest.mark.anyio


@pytest.fixture
def recent() -> Recent:
    return Recent()


@pytest.fixture
async def stream(store: SQLiteStore, recent: Recent) -> AsyncIterator[Stream]:
    made = Stream(store, recent)
    async with anyio.create_task_group() as group:
        group.start_soon(made.run)
        yield made
        group.cancel_scope.cancel()


class Listener:
    """One who reads ticks, each within a few seconds."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.id = ""

    async def chunk(self) -> bytes:
        with anyio.fail_after(10):
            return await anext(self._chunks)

    async def tick(self) -> Any:
        while (chunk := await self.chunk()) == STILL_HERE:
            pass
        id, event, data = chunk.decode().removesuffix("\n\n").split("\n")
        assert event == "event: tick"
        self.id = id.removeprefix("id: ")
        return json.loads(data.removeprefix("data: "))

    async def seqs(self) -> list[int]:
        return [event["seq"] for event in (await self.tick())["events"]]


@asynccontextmanager
async def listening(stream: Stream, last: str = "") -> AsyncIterator[Listener]:
    chunks = cast("AsyncGenerator[bytes, None]", stream.listen(last))
    assert (await anext(chunks)).startswith(b"retry: ")
    try:
        yield Listener(chunks)
    finally:
        await chunks.aclose()


async def finish(store: SQLiteStore, recent: Recent) -> list[int]:
    """Everything due is done, and noted as the drain does."""
    claimed = await store.claim("handler", 500, NOW + SECOND)
    for one in claimed:
        await store.settle(ended(one))
        recent.note(one.event.seq)
    return [one.event.seq for one in claimed]


async def test_the_first_tick_is_the_newest_and_the_next_what_is_new(store: SQLiteStore, stream: Stream) -> None:
    await store.accept([arrival(f"e{n}") for n in range(60)])
    async with listening(stream) as one:
        first = await one.tick()
        assert [event["seq"] for event in first["events"]] == list(range(60, 10, -1))
        assert first["totals"]["events"] == 60
        assert first["totals"]["sources"]["demo"]["received"] == 60
        await store.accept([arrival("late", type="lost")])
        second = await one.tick()
        assert [(event["id"], event["state"]) for event in second["events"]] == [("late", "unrouted")]
        assert second["totals"]["by_state"]["unrouted"] == 1


async def test_an_outcome_of_an_old_event_is_told(store: SQLiteStore, stream: Stream, recent: Recent) -> None:
    await store.accept([arrival("old")])
    await store.accept([arrival(f"e{n}", type="lost") for n in range(80)])
    async with listening(stream) as one:
        assert 1 not in await one.seqs()
        assert await finish(store, recent) == [1]
        told = await one.tick()
        assert [(event["seq"], event["state"]) for event in told["events"]] == [(1, "done")]


async def test_who_comes_again_hears_what_it_missed_and_nothing_twice(
    store: SQLiteStore, stream: Stream, recent: Recent
) -> None:
    await store.accept([arrival("a")])
    async with listening(stream) as one:
        await one.tick()
    await store.accept([arrival("b")])
    async with listening(stream, one.id) as again:
        assert await again.seqs() == [2]
        await finish(store, recent)
        assert await again.seqs() == [2, 1]


async def test_who_is_behind_hears_the_newest_whole(store: SQLiteStore, stream: Stream) -> None:
    async with listening(stream) as slow, listening(stream) as quick:
        await slow.tick()
        await quick.tick()
        for n in range(3):
            await store.accept([arrival(f"e{n}")])
            assert await quick.seqs() == [n + 1]
        assert await slow.seqs() == [3, 2, 1]


async def test_an_id_of_another_process_begins_anew(store: SQLiteStore, stream: Stream) -> None:
    await store.accept([arrival("a")])
    for last in ("0123456789abcdef.0", f"{store.boot}.7", f"{store.boot}.x", "\x00", "…"):
        async with listening(stream, last) as one:
            assert await one.seqs() == [1]


async def test_all_listeners_of_a_tick_share_its_bytes(store: SQLiteStore, stream: Stream) -> None:
    async with listening(stream) as one, listening(stream) as other:
        first = await one.chunk()
        assert await other.chunk() is first
        await store.accept([arrival("a")])
        second = await one.chunk()
        assert await other.chunk() is second


async def test_the_end_ends_every_listener_at_once(stream: Stream) -> None:
    async with listening(stream) as one, listening(stream) as other:
        await one.tick()
        await other.tick()
        stream.end()
        for listener in (one, other):
            with pytest.raises(StopAsyncIteration):
                await listener.chunk()


async def test_silence_is_told_from_time_to_time(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.01)
    async with listening(stream) as one:
        await one.tick()
        assert await one.chunk() == STILL_HERE
        assert await one.chunk() == STILL_HERE


async def test_it_is_an_event_stream_for_those_who_may_read(
    config: Config, store: SQLiteStore, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Litestar(
        create_api(config, store, list, create_stream_routes(stream)),
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        logging_config=None,
    )
    await store.accept([arrival("a")])
    async with AsyncTestClient(app) as client:
        caller = Caller(client)
        assert (await caller.refusal("/api/stream?since=1")).startswith("400 bad-request")
        assert (await caller.get("/api/stream", token=None)).status_code == 401
        stream.end()
        answer = await caller.get("/api/stream", token="grafana-token")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        monkeypatch.setattr(streams, "MOST", 0)
        assert (await caller.get("/api/stream")).status_code == 503


@given(st.lists(st.integers(1, 200), max_size=300), st.integers(0, 300))
def test_recent_gives_the_last_different_numbers_since_a_mark(numbers: list[int], cut: int) -> None:
    recent = Recent()
    for number in numbers:
        recent.note(number)
    expected: list[int] = []
    for position in range(len(numbers) - 1, min(cut, len(numbers)) - 1, -1):
        if numbers[position] not in expected:
            expected.append(numbers[position])
    kept = list(dict.fromkeys(reversed(numbers)))[:MOST]
    assert recent.since(cut) == [number for number in expected if number in kept]


@given(st.sets(st.integers(1, 99)), st.sets(st.integers(50, 150)), st.integers(2, 50))
def test_neither_what_changed_nor_what_is_new_crowds_the_other_out(
    changed: set[int], fresh: set[int], room: int
) -> None:
    found = among(sorted(changed, reverse=True), sorted(fresh, reverse=True), room)
    assert found == sorted(set(found), reverse=True)
    assert len(found) == min(room, len(changed | fresh))
    assert set(sorted(changed, reverse=True)[: room // 2]) <= set(found)
    assert len(set(found) & fresh) >= min(len(fresh), room // 2)
