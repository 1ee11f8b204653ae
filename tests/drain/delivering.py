"""An inbox that delivers to given targets by the real clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from drain.conftest import Rows, arrival
from oncebox.drain.drain import Drain
from oncebox.drain.http import Client, URLTarget, open_client
from oncebox.drain.load import Handlers
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.target import Target
from oncebox.headers import Headers
from oncebox.model import Claimed, Event
from oncebox.route import Route, compile_router
from oncebox.store.sqlite import SQLiteStore, open_store

QUICK = RetryPolicy(attempts=12, base=0.005, factor=1.5, ceiling=0.02)


def wall() -> int:
    return time.time_ns() // 1000


def claimed(id: str = "evt_1", *, body: bytes = b"{}", type: str | None = "paid", seq: int = 7) -> Claimed:
    """A delivery that is running, of an event that is in no file."""
    event = Event(
        seq=seq,
        source="shop",
        id=id,
        type=type,
        received_at=datetime(2026, 12, 2, tzinfo=UTC),
        headers=Headers(),
        content_type="application/json",
        body=body,
        raw=body,
        attempt=2,
        instance="edge",
    )
    return Claimed(event, "tool", 1, 2, 0)


class Inbox:
    """A store and its drain, and what tests ask of the two."""

    def __init__(self, store: SQLiteStore, drain: Drain, client: Client) -> None:
        self.store = store
        self.drain = drain
        self.client = client

    async def receive(self, *ids: str, source: str = "demo", type: str = "t", body: bytes = b"{}") -> None:
        await self.store.accept([arrival(id, at=wall(), source=source, type=type, body=body) for id in ids])

    async def idle(self, seconds: float = 30) -> None:
        """Until every delivery is done or dead."""
        with anyio.fail_after(seconds):
            while await self.rows("select 1 from deliveries where state not in ('done', 'dead') limit 1"):
                await self.drain.idle()
                await anyio.sleep(0.002)

    async def until(self, holds: Callable[[], bool], seconds: float = 20) -> None:
        with anyio.fail_after(seconds):
            while not holds():  # noqa: ASYNC110  # what it waits for is the doing of others
                await anyio.sleep(0.002)

    async def until_running(self, count: int, seconds: float = 20) -> None:
        """Until so many deliveries are claimed."""
        with anyio.fail_after(seconds):
            while await self.rows("select count(*) from deliveries where state = 'running'") != [(count,)]:  # noqa: ASYNC110  # as above
                await anyio.sleep(0.002)

    async def rows(self, sql: str, *params: object) -> Rows:
        return await self.store.read(lambda db: db.execute(sql, params).fetchall())

    async def states(self) -> Rows:
        """(event's id, state, outcome, failures) of every delivery."""
        return await self.rows(
            "select e.id, d.state, d.outcome, d.failures from deliveries d join events e on e.seq = d.seq order by 1"
        )

    async def error(self, id: str) -> str:
        (row,) = await self.rows("select d.error from deliveries d join events e on e.seq = d.seq where e.id = ?", id)
        return str(row[0])


Make = Callable[[Client], Sequence[Target]]


@asynccontextmanager
async def delivering(
    path: Path,
    make: Make,
    *,
    ordered_by: str | None = None,
    skipping: frozenset[str] = frozenset(),
    grace: float = 1.0,
    reach: Collection[str] = ("demo",),
) -> AsyncIterator[Inbox]:
    drains: list[Drain] = []

    def woken(names: set[str]) -> None:
        for drain in drains:
            drain.wake(names)

    async with open_client() as client:
        targets = make(client)
        router = compile_router([Route(ordered_by=ordered_by, to=tuple(target.name for target in targets))])
        async with open_store(path, router=router, woken=woken, skipping=skipping) as store:
            drain = Drain(store, Handlers(), targets=targets, reach={target.name: reach for target in targets})
            drains.append(drain)
            async with anyio.create_task_group() as group:
                group.start_soon(drain.run)
                try:
                    yield Inbox(store, drain, client)
                finally:
                    with anyio.CancelScope(shield=True):
                        await drain.stop(grace)


def posting(url: str, **more: Any) -> Make:
    """One URL target called hook, retried quickly."""

    settings: dict[str, Any] = {"retry": QUICK, "timeout": 5.0} | more

    def make(client: Client) -> Sequence[Target]:
        return [URLTarget("hook", url, client, wall, **settings)]

    return make
