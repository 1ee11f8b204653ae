"""A store for each test, opened by whatever `open_any` knows; a second store joins by one more line there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from oncebox.model import Arrival, Claimed, Planned, Settled
from oncebox.store import Transaction
from oncebox.store.sqlite import Options, SQLiteStore, open_store

Open = Callable[..., AbstractAsyncContextManager[SQLiteStore]]
NOW = 1_796_000_000_000_000


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "inbox.db"


@pytest.fixture
def open_any(database: Path) -> Open:
    def opened(**options: Any) -> AbstractAsyncContextManager[SQLiteStore]:
        router = options.pop("router", to_handler)
        return open_store(database, router=router, internal=frozenset({"mail"}), options=Options(**options))

    return opened


@pytest.fixture
async def store(open_any: Open) -> AsyncIterator[SQLiteStore]:
    async with open_any() as opened:
        yield opened


def to_handler(_arrival: Arrival) -> Sequence[Planned]:
    return (Planned("handler"),)


def arrival(id: str = "evt_1", body: bytes = b"{}", source: str = "demo", at: int = NOW, **more: Any) -> Arrival:
    return Arrival(
        source=source,
        id=id,
        type=more.pop("type", "t"),
        received_at=at,
        headers=(("content-type", "application/json"),),
        content_type="application/json",
        encoding=None,
        body=body,
        decoded=body,
        body_hash=sha256(body).digest(),
        verified="hmac",
        **more,
    )


def ended(claimed: Claimed, state: str = "done", **more: Any) -> Settled:
    return Settled(
        seq=claimed.event.seq,
        target=claimed.target,
        run=claimed.run,
        attempt=claimed.attempt,
        state=state,
        outcome=more.pop("outcome", "ok" if state == "done" else "error"),
        started_at=NOW,
        duration=1,
        now=NOW + 1,
        **more,
    )


class Running:
    """A runner made of one function; an exception is a failure that is tried again in a minute."""

    def __init__(self, handler: Callable[[Claimed, Transaction], object]) -> None:
        self.handler = handler
        self.seen: list[str] = []

    def run(self, claimed: Claimed, db: Transaction) -> Settled:
        self.seen.append(claimed.event.id)
        try:
            self.handler(claimed, db)
        except Exception as error:  # noqa: BLE001  # as the drain does
            return self.failed(claimed, "error", str(error), NOW, 1)
        return ended(claimed)

    def failed(self, claimed: Claimed, outcome: str, why: str, started_at: int, duration: int) -> Settled:
        return ended(claimed, "pending", outcome=outcome, error=why, due=NOW + 60_000_000)


async def drain(store: SQLiteStore, runner: Running, targets: Sequence[str] = ("handler",)) -> list[Settled]:
    settled: list[Settled] = []
    while True:
        done = await store.process(targets, runner, lambda: NOW + 1)
        settled += done.settled
        if not done.more:
            return settled


async def rows(store: SQLiteStore, sql: str, *params: object) -> list[tuple[Any, ...]]:
    return await store.read(lambda db: db.execute(sql, params).fetchall())


async def books_are_right(store: SQLiteStore) -> None:
    """The totals equal what a recount finds."""
    counted = dict.fromkeys(("pending", "parked", "running", "done", "dead"), 0)
    counted |= dict(await rows(store, "select state, count(*) from deliveries group by 1"))
    written = dict.fromkeys(counted, 0)
    written |= dict(
        await rows(
            store,
            "select what, sum(n) from totals where minute = 0 and what in "
            "('pending', 'parked', 'running', 'done', 'dead') group by 1",
        )
    )
    assert written == counted
    received = await rows(store, "select coalesce(sum(n), 0) from totals where minute = 0 and what = 'received'")
    assert received[0][0] == (await rows(store, "select count(*) from events"))[0][0]
