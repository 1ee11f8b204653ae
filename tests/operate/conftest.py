"""A store with a little history, and the API in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient

from oncebox.config import Config, load
from oncebox.model import Arrival, Claimed, Planned, Settled
from oncebox.operate.api import create_api
from oncebox.operate.failure import EXCEPTION_HANDLERS
from oncebox.store.sqlite import SQLiteStore, open_store

NOW = 1_796_000_000_000_000
SECOND = 1_000_000
TOML = """
[server]
public_url = "https://hooks.example.com"
[tokens]
boss = "plain:boss-token"
auditor = { secret = "plain:auditor-token", may = "read-bodies" }
grafana = { secret = "plain:grafana-token", may = "read" }
[store]
path = "inbox.db"
[sources.demo]
id = "header:Idempotency-Key"
unsigned = true
[sources.quiet]
id = "header:Idempotency-Key"
unsigned = true
"""


def arrival(id: str, *, source: str = "demo", body: bytes = b"{}", at: int = NOW, **more: Any) -> Arrival:
    return Arrival(
        source=source,
        id=id,
        type=more.pop("type", "t"),
        received_at=at,
        headers=(("content-type", "application/json"), ("x-a", "1")),
        content_type="application/json",
        encoding=more.pop("encoding", None),
        body=body,
        decoded=body,
        body_hash=sha256(body).digest(),
        verified=more.pop("verified", "hmac"),
        **more,
    )


def by_type(arrival: Arrival) -> Sequence[Planned]:
    """`ordered` events are in order, `lost` ones go nowhere."""
    if arrival.type == "lost":
        return ()
    return (Planned("handler", "key" if arrival.type == "ordered" else None),)


def ended(claimed: Claimed, state: str = "done", **more: Any) -> Settled:
    return Settled(
        seq=claimed.event.seq,
        target=claimed.target,
        run=claimed.run,
        attempt=claimed.attempt,
        state=state,
        outcome=more.pop("outcome", "ok" if state == "done" else "error"),
        started_at=NOW + SECOND,
        duration=1500,
        now=NOW + 2 * SECOND,
        **more,
    )


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "litestar.toml"
    path.write_text(TOML)
    return load(path, environ={}, overrides={})


@pytest.fixture
async def store(config: Config) -> AsyncIterator[SQLiteStore]:
    async with open_store(config.store.path, router=by_type) as opened:
        yield opened


class Caller:
    """Somebody with a token who asks the API."""

    def __init__(self, client: AsyncTestClient[Litestar]) -> None:
        self.client = client

    async def get(self, path: str, token: str | None = "boss-token", **headers: str) -> Any:
        sent = {"host": "127.0.0.1:8640", **headers}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        return await self.client.get(
            path, headers={name.encode(): text.encode("latin-1") for name, text in sent.items()}
        )

    async def json(self, path: str) -> Any:
        answer = await self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refusal(self, path: str) -> str:
        answer = await self.get(path)
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["status"] == answer.status_code
        return f"{problem['status']} {problem['type'].removeprefix('urn:oncebox:problem:')}: {problem['detail']}"


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
async def api(config: Config, store: SQLiteStore, reasons: list[str]) -> AsyncIterator[Caller]:
    app = Litestar(
        create_api(config, store, lambda: reasons),
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        logging_config=None,
    )
    async with AsyncTestClient(app) as client:
        yield Caller(client)
