"""Operations on a real file, called as ASGI calls them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from oncebox.model import Arrival, Planned
from oncebox.perform.callers import Callers
from oncebox.perform.desk import Desk
from oncebox.perform.flight import Waiters
from oncebox.perform.ingress import in_front_of
from oncebox.perform.operation import Operation
from oncebox.perform.performer import Performer
from oncebox.store.sqlite import Options, SQLiteStore, open_store

NOW = 1_796_000_000_000_000
DAY = 86_400
Rows = list[tuple[Any, ...]]
SECRETS = {"acme": "s3cret", "other": "0ther"}


class Clock:
    """Unix microseconds that move only when told."""

    def __init__(self) -> None:
        self.at = NOW

    def __call__(self) -> int:
        return self.at

    def move(self, seconds: float) -> None:
        self.at += round(seconds * 1_000_000)


class Got(msgspec.Struct, frozen=True):
    """What a caller was answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def slug(self) -> str:
        return str(self.json["type"]).rpartition(":")[2]

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def facts(self) -> tuple[int, dict[str, str], bytes]:
        """All that a replay must repeat."""
        return self.status, {k: v for k, v in self.headers.items() if k != "idempotent-replayed"}, self.body


class Box:
    """A running performer and what tests ask of it."""

    def __init__(self, store: SQLiteStore, performer: Performer, desk: Desk, clock: Clock) -> None:
        self.store, self.performer, self.desk, self.clock = store, performer, desk, clock
        self.app = in_front_of(nowhere, desk)

    async def post(
        self,
        operation: str,
        body: object = None,
        *,
        key: str | bytes | None = "k1",
        method: str = "POST",
        query: str = "",
        token: str | None = "s3cret",
        headers: Mapping[str, str] | None = None,
        content_type: str | None = "application/json",
    ) -> Got:
        """One call, from its first byte to the last of its answer."""
        raw = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        pairs.append((b"content-length", str(len(raw)).encode()))
        if key is not None:
            pairs.append((b"idempotency-key", key if isinstance(key, bytes) else key.encode("latin-1")))
        if token is not None:
            pairs.append((b"authorization", f"Bearer {token}".encode()))
        if content_type is not None:
            pairs.append((b"content-type", content_type.encode()))
        return await self.ask(f"/do/{operation}", method, query, pairs, raw)

    async def ask(
        self, path: str, method: str, query: str, headers: list[tuple[bytes, bytes]], body: bytes, root: str = ""
    ) -> Got:
        sent: list[dict[str, Any]] = []
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            return next(given, {"type": "http.disconnect"})

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": root,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }
        await self.app(scope, receive, send)
        start = sent[0]
        found = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
        return Got(start["status"], found, b"".join(message["body"] for message in sent[1:]))

    async def rows(self, sql: str, *params: object) -> Rows:
        return await self.store.read(lambda db: db.execute(sql, params).fetchall())

    async def states(self) -> Rows:
        return await self.rows("select caller, key, state, attempts from operations order by caller, key")


OpenBox = Callable[..., AbstractAsyncContextManager[Box]]


async def nowhere(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 418, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_box(tmp_path: Path, clock: Clock) -> OpenBox:
    @asynccontextmanager
    async def opened(
        *operations: Operation[..., Any],
        waiters: Waiters | None = None,
        grace: float = 5.0,
        keep: float = 30 * DAY,
        limit: int = 1 << 20,
        options: Options = Options(),  # noqa: B008  # frozen
        killed: bool = False,
    ) -> AsyncIterator[Box]:
        """`killed`: the process ends without a word to those that run."""

        def router(arrival: Arrival) -> list[Planned]:
            return [Planned("mailer")] if arrival.source == "mail" else []

        path = tmp_path / "inbox.db"
        async with open_store(path, router=router, internal=frozenset({"mail"}), options=options) as store:
            await store.write(
                lambda db: db.execute(
                    "create table if not exists orders (id integer primary key, sku text not null unique) strict"
                ),
                clock(),
            )
            performer = Performer(
                {one.name: one for one in operations}, store, now=clock, keep=keep, waiters=waiters, sync_timeout=1.0
            )
            await performer.open()
            desk = Desk(performer, Callers(SECRETS), limit=limit)
            async with anyio.create_task_group() as group:
                group.start_soon(performer.run)
                await asyncio.sleep(0)
                try:
                    yield Box(store, performer, desk, clock)
                finally:
                    if not killed:
                        with anyio.CancelScope(shield=True):
                            await performer.stop(grace)
                    group.cancel_scope.cancel()

    return opened
