"""An inbox of handlers on a real file: routes, store and drain as the server puts them together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

from oncebox.drain.drain import Drain, set_up
from oncebox.drain.handler import Handler, Setup
from oncebox.drain.load import Handlers
from oncebox.model import Arrival
from oncebox.route import compile_router, internal_sources
from oncebox.store.sqlite import SQLiteStore, open_store

Rows = list[tuple[Any, ...]]


class Clock:
    """Unix microseconds that move only when told."""

    def __init__(self) -> None:
        self.at = 1_796_000_000_000_000

    def __call__(self) -> int:
        return self.at

    def move(self, seconds: float) -> None:
        self.at += round(seconds * 1_000_000)


class Box:
    """A running drain on a store, and what tests ask of the two."""

    def __init__(self, store: SQLiteStore, drain: Drain, clock: Clock) -> None:
        self.store = store
        self.drain = drain
        self.clock = clock

    async def receive(self, *ids: str, source: str = "demo", type: str = "t", body: bytes = b"{}") -> None:
        arrivals = [arrival(id, source=source, type=type, body=body, at=self.clock()) for id in ids]
        await self.store.accept(arrivals)

    async def settle(self) -> None:
        """Until nothing is due; a drain that never gets there fails the test."""
        with anyio.fail_after(20):
            await self.drain.idle()

    async def pass_time(self, seconds: float) -> None:
        self.clock.move(seconds)
        self.drain.wake()
        await self.settle()

    async def rows(self, sql: str, *params: object) -> Rows:
        return await self.store.read(lambda db: db.execute(sql, params).fetchall())

    async def states(self) -> Rows:
        """(event's id, state, attempts, outcome) of every delivery."""
        deliveries = "select e.id, d.state, d.attempts, d.outcome from v_deliveries d join events e on e.seq = d.seq"
        return await self.rows(f"{deliveries} order by 1, d.target")


OpenBox = Callable[..., AbstractAsyncContextManager[Box]]
OpenQuiet = Callable[..., AbstractAsyncContextManager[SQLiteStore]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_box(tmp_path: Path, clock: Clock) -> OpenBox:
    @asynccontextmanager
    async def opened(
        *found: Handler[..., Any] | Setup[..., Any], grace: float = 5.0, **more: Any
    ) -> AsyncIterator[Box]:
        handlers = collected(found)
        drains: list[Drain] = []

        def woken(names: set[str]) -> None:
            for drain in drains:
                drain.wake(names)

        routes = handlers.routes
        internal = internal_sources(routes, receiving={"demo"})
        path = tmp_path / "inbox.db"
        async with open_store(path, router=compile_router(routes), internal=internal, woken=woken) as store:
            await set_up(store, handlers, clock)
            more.setdefault("reach", {name: {"demo"} for name in handlers.names})
            drain = Drain(store, handlers, now=clock, jitter=lambda: 0.0, **more)
            drains.append(drain)
            async with anyio.create_task_group() as group:
                group.start_soon(drain.run)
                try:
                    yield Box(store, drain, clock)
                finally:
                    with anyio.CancelScope(shield=True):
                        await drain.stop(grace)

    return opened


@pytest.fixture
def open_quiet(tmp_path: Path) -> OpenQuiet:
    """The store alone, with the routes of the handlers: what a process had before it died."""

    def opened(*found: Handler[..., Any]) -> AbstractAsyncContextManager[SQLiteStore]:
        return open_store(tmp_path / "inbox.db", router=compile_router(collected(found).routes))

    return opened


def collected(found: Sequence[object]) -> Handlers:
    return Handlers(
        tuple(one for one in found if isinstance(one, Handler)), tuple(one for one in found if isinstance(one, Setup))
    )


def arrival(id: str, *, at: int, source: str = "demo", type: str = "t", body: bytes = b"{}") -> Arrival:
    return Arrival(
        source=source,
        id=id,
        type=type,
        received_at=at,
        headers=(("content-type", "application/json"),),
        content_type="application/json",
        encoding=None,
        body=body,
        decoded=body,
        body_hash=sha256(body).digest(),
        verified="unsigned",
    )
