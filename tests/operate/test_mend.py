"""Reruns, pauses and what belongs to them, over the API and a real store; the feeder beside it."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar

from oncebox.condition import Condition
from oncebox.config import Config
from oncebox.model import Planned
from oncebox.operate import feeder as feeding
from oncebox.operate.api import create_api
from oncebox.operate.failure import EXCEPTION_HANDLERS
from oncebox.operate.feeder import LATER as LATER_STEP
from oncebox.operate.feeder import STEP, Feeder, step_size
from oncebox.operate.mend import create_rerun_routes, create_target_routes
from oncebox.operate.targets import Known
from oncebox.store.sqlite import SQLiteStore
from operate.conftest import NOW, SECOND, arrival, ended

pytestmark = pytest.mark.anyio

LATER = NOW + 60 * SECOND
KNOWN = (Known("handler", "handler"), Known("shop", "url"))
CONDITIONS = {"shop": Condition(stuck=True)}


class Desk:
    """Somebody with a token who orders things."""

    def __init__(self, client: httpx.AsyncClient, store: SQLiteStore, feeder: Feeder) -> None:
        self.client = client
        self.store = store
        self.feeder = feeder

    async def ask(self, method: str, path: str, body: object = None, token: str = "boss-token") -> Any:
        return await self.client.request(
            method,
            path,
            content=None if body is None else json.dumps(body).encode(),
            headers={"host": "127.0.0.1:8640", "authorization": f"Bearer {token}"},
        )

    async def json(self, method: str, path: str, body: object = None, status: int = 200) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def refusal(self, method: str, path: str, body: object = None, token: str = "boss-token") -> str:
        answer = await self.ask(method, path, body, token)
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        problem = answer.json()
        return f"{problem['status']} {problem['type'].removeprefix('urn:oncebox:problem:')}: {problem['detail']}"

    async def end_all(self, state: str, target: str = "handler", **more: Any) -> int:
        count = 0
        while found := await self.store.claim(target, 100, LATER):
            for claimed in found:
                count += 1
                await self.store.settle(ended(claimed, state, **more))
        return count

    async def acts(self) -> list[tuple[str, str, str]]:
        found = (await self.json("GET", "/api/acts"))["acts"]
        return [(one["who"], one["what"], one["detail"]) for one in reversed(found)]


@pytest.fixture
async def desk(config: Config, store: SQLiteStore) -> AsyncIterator[Desk]:
    feeder = Feeder(store, lambda: LATER)
    more = [
        *create_rerun_routes(store, KNOWN, feeder.ring, lambda: LATER),
        *create_target_routes(config, store, KNOWN, lambda: CONDITIONS, lambda: LATER),
    ]
    app = Litestar(
        create_api(config, store, list, more),
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        logging_config=None,
    )
    # In this event loop, as under uvicorn; Litestar's own client runs the app in another thread.
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(cast("Any", app)), base_url="http://127.0.0.1:8640"
    ) as client:
        yield Desk(client, store, feeder)


async def test_one_dead_event_runs_again(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1")])
    await desk.end_all("dead", error="no such table")
    answer = await desk.ask("POST", "/api/events/1/rerun")
    assert (answer.status_code, answer.headers["location"]) == (202, "/api/reruns/1")
    assert answer.json() == {"id": 1, "state": "running", "matched": 1, "queued": 0, "done": 0, "dead": 0}
    await desk.feeder.turn()
    assert await desk.end_all("done") == 1
    found = await desk.json("GET", "/api/reruns/1")
    assert {name: found[name] for name in ("state", "matched", "queued", "done", "dead", "skipped", "who")} == {
        "state": "done", "matched": 1, "queued": 1, "done": 1, "dead": 0, "skipped": 0, "who": "boss",
    }  # fmt: skip
    event = await desk.json("GET", "/api/events/1")
    assert [(one["run"], one["outcome"]) for one in event["deliveries"][0]["history"]] == [(1, "error"), (2, "ok")]
    assert await desk.acts() == [("boss", "rerun", "1: seqs=[1]")]


async def test_one_event_that_cannot_run_again_says_why(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1"), arrival("evt_2"), arrival("evt_3", type="lost")])
    first, second = await desk.store.claim("handler", 2, LATER)
    assert await desk.refusal("POST", "/api/events/1/rerun") == (
        "409 in-progress: event 1: handler is running; run it again when that has ended"
    )
    await desk.store.settle(ended(first))
    await desk.store.settle(ended(second))
    await desk.store.change(lambda db, _: db.execute("delete from payloads where seq = 2"))
    assert await desk.refusal("POST", "/api/events/2/rerun") == (
        "404 not-found: the body of event 2 was pruned, so it cannot run again; its outcome is still known"
    )
    assert await desk.refusal("POST", "/api/events/3/rerun") == (
        "400 bad-request: event 3 goes nowhere by today's routes; add one, or name a target with to"
    )
    assert await desk.refusal("POST", "/api/events/9/rerun") == "404 not-found: there is no event 9"
    assert "bad-request: to: there is no target" in await desk.refusal("POST", "/api/events/1/rerun", {"to": ["shp"]})
    assert "did you mean" in await desk.refusal("POST", "/api/events/1/rerun", {"to": ["shp"]})
    assert (await desk.refusal("POST", "/api/events/1/rerun", {"too": 1})).startswith("400 bad-request")
    assert await desk.acts() == []


async def test_a_dry_run_counts_and_changes_nothing(desk: Desk) -> None:
    await desk.store.accept([arrival(f"evt_{n}") for n in range(5)])
    await desk.end_all("dead")
    assert await desk.json("POST", "/api/reruns", {"state": "dead", "dry_run": True}) == {"matched": 5}
    assert await desk.json("POST", "/api/reruns", {"seqs": [1, 2], "dry_run": True}) == {"matched": 2}
    assert await desk.json("GET", "/api/reruns") == {"reruns": [], "next": None}
    assert await desk.acts() == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "the filter is empty"),
        ({"to": ["handler"]}, "the filter is empty"),
        ({"seqs": []}, "seqs: has 0 numbers"),
        ({"seqs": [1], "source": "demo"}, "cannot stand beside source"),
        ({"seqs": [0]}, "seqs: 0 is not"),
        ({"seqs": ["1"]}, "Expected `int`"),
        ({"state": "running"}, 'state: "running" is none'),
        ({"state": "dead", "since": "yesterday"}, "since:"),
        ({"state": "dead", "rate": 0}, "rate: 0 is not"),
        ({"state": "dead", "where": {"live": True}}, "is not a JSON pointer"),
        ({"state": "dead", "sauce": "demo"}, "unknown field"),
        ([], "Expected `object`"),
    ],
)
async def test_an_order_that_means_nothing_is_refused(desk: Desk, body: object, why: str) -> None:
    told = await desk.refusal("POST", "/api/reruns", body)
    assert told.startswith("400 bad-request")
    assert why in told


async def test_a_state_beside_numbers_is_told(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1"), arrival("evt_2")])
    await desk.end_all("dead")
    await desk.json("POST", "/api/reruns", {"seqs": [1, 2], "state": "dead"}, 202)
    (told,) = (await desk.json("GET", "/api/reruns"))["reruns"]
    assert told["filter"] == {"seqs": [1, 2], "state": "dead"}


async def test_all_history_runs_again_only_when_that_is_said(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1"), arrival("evt_2", source="quiet")])
    await desk.end_all("done")
    assert (await desk.json("POST", "/api/reruns", {"all": True}, 202))["matched"] == 2
    assert await desk.refusal("POST", "/api/reruns", {"seqs": [1, 77]}) == "404 not-found: seqs: there is no event 77"


async def test_changes_need_an_admin(desk: Desk) -> None:
    for method, path in [
        ("POST", "/api/reruns"), ("POST", "/api/events/1/rerun"), ("GET", "/api/reruns/1"), ("DELETE", "/api/reruns/1"),
        ("POST", "/api/targets/handler/pause"), ("POST", "/api/targets/handler/resume"), ("GET", "/api/acts"),
    ]:  # fmt: skip
        assert (await desk.refusal(method, path, token="auditor-token")).startswith("403 unauthorized")
    for path in ("/api/targets", "/api/sources"):
        assert (await desk.ask("GET", path, token="grafana-token")).status_code == 200


async def test_a_cancelled_rerun_is_told_and_recorded(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1")])
    await desk.end_all("dead")
    await desk.json("POST", "/api/reruns", {"state": "dead"}, 202)
    assert (await desk.json("DELETE", "/api/reruns/1"))["state"] == "cancelled"
    assert (await desk.json("DELETE", "/api/reruns/1"))["state"] == "cancelled"
    await desk.feeder.turn()
    assert await desk.end_all("done") == 0
    assert await desk.refusal("DELETE", "/api/reruns/2") == "404 not-found: there is no rerun 2"
    assert [what for _, what, _ in await desk.acts()] == ["rerun", "rerun cancelled"]


async def test_reruns_are_listed_newest_first_in_pages(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1")])
    for _ in range(3):
        await desk.json("POST", "/api/reruns", {"source": "demo"}, 202)
    page = await desk.json("GET", "/api/reruns?limit=2")
    assert [one["id"] for one in page["reruns"]] == [3, 2]
    rest = await desk.json("GET", f"/api/reruns?limit=2&cursor={page['next']}")
    assert ([one["id"] for one in rest["reruns"]], rest["next"]) == ([1], None)


async def test_a_paused_target_is_told_with_its_reason_and_what_waits(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1"), arrival("evt_2"), arrival("evt_3")])
    [one] = await desk.store.claim("handler", 1, LATER)
    await desk.store.settle(ended(one, "dead"))
    paused = await desk.json("POST", "/api/targets/handler/pause", {"why": "deploying"})
    assert paused == {"name": "handler", "paused": "deploying"}
    found = (await desk.json("GET", "/api/targets"))["targets"]
    assert found == [
        {
            "name": "handler", "kind": "handler", "state": "paused", "paused": "deploying",
            "paused_at": "2026-11-30T00:54:20.000000Z", "stuck": False, "down": None,
            "last_failure": None, "pending": 2, "parked": 0, "running": 0, "dead": 1,
            "counted_all": True, "oldest_due_at": "2026-11-30T00:53:20.000000Z",
        },
        {
            "name": "shop", "kind": "url", "state": "stuck", "paused": None, "paused_at": None, "stuck": True,
            "down": None, "last_failure": None, "pending": 0,
            "parked": 0, "running": 0, "dead": 0, "counted_all": True, "oldest_due_at": None,
        },
    ]  # fmt: skip
    assert await desk.store.claim("handler", 1, LATER) == []
    assert (await desk.json("POST", "/api/targets/handler/resume"))["resumed"] is True
    assert (await desk.json("POST", "/api/targets/handler/resume"))["resumed"] is False
    assert len(await desk.store.claim("handler", 5, LATER)) == 2
    assert 'did you mean "handler"' in await desk.refusal("POST", "/api/targets/handlr/pause")
    assert await desk.acts() == [
        ("boss", "target paused", "handler: deploying"),
        ("boss", "target resumed", "handler"),
    ]


async def test_a_target_that_nobody_is_any_more_is_blocked(desk: Desk) -> None:
    desk.store.routing.router = lambda _: (Planned("gone"),)
    await desk.store.accept([arrival("evt_1")])
    found = (await desk.json("GET", "/api/targets"))["targets"]
    assert tuple(found[0][name] for name in ("name", "kind", "state", "pending")) == (
        "gone",
        None,
        "blocked",
        1,
    )


async def test_sources_tell_their_url_and_what_they_sent(desk: Desk) -> None:
    await desk.store.accept([arrival("evt_1")])
    await desk.store.accept([arrival("evt_1")])
    demo, quiet = (await desk.json("GET", "/api/sources"))["sources"]
    assert (demo["name"], demo["url"], demo["received"]) == ("demo", "https://hooks.example.com/in/demo", 1)
    assert (quiet["name"], quiet["received"], quiet["last_at"]) == ("quiet", 0, None)


# The feeder


@pytest.mark.alone
async def test_the_feeder_stays_a_step_ahead_of_what_is_processed(desk: Desk) -> None:
    await desk.store.accept([arrival(f"evt_{n}") for n in range(3 * STEP)])
    await desk.end_all("done")
    await desk.json("POST", "/api/reruns", {"source": "demo"}, 202)
    assert await desk.feeder.turn() == 0.0
    assert await desk.feeder.turn() > 0.0
    assert (await desk.json("GET", "/api/reruns/1"))["queued"] == STEP
    assert await desk.end_all("done") == STEP
    with anyio.fail_after(20):
        while (await desk.json("GET", "/api/reruns/1"))["state"] == "running":
            await desk.feeder.turn()
            await desk.end_all("done")
    found = await desk.json("GET", "/api/reruns/1")
    assert (found["queued"], found["done"]) == (3 * STEP, 3 * STEP)


@pytest.mark.alone
async def test_a_rerun_that_fails_all_over_is_fed_no_further(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "MOST_OPEN", STEP)
    await desk.store.accept([arrival(f"evt_{n}") for n in range(3 * STEP)])
    assert await desk.end_all("done") == 3 * STEP
    await desk.json("POST", "/api/reruns", {"all": True}, status=202)
    await desk.feeder.turn()
    assert await desk.end_all("pending", due=LATER + 60 * SECOND) == STEP
    assert await desk.feeder.turn() > LATER_STEP / 2
    assert (await desk.json("GET", "/api/reruns/1"))["queued"] == STEP
    again = await desk.store.claim("handler", STEP, LATER + 120 * SECOND)
    for claimed in again[:3]:
        await desk.store.settle(ended(claimed))
    desk.feeder = Feeder(desk.store, lambda: LATER)
    await desk.feeder.turn()
    assert (await desk.json("GET", "/api/reruns/1"))["queued"] == 2 * STEP


@pytest.mark.alone
async def test_a_rate_spreads_the_steps(desk: Desk) -> None:
    await desk.store.accept([arrival(f"evt_{n}") for n in range(30)])
    await desk.end_all("done")
    await desk.json("POST", "/api/reruns", {"source": "demo", "rate": 50}, 202)
    assert 0.15 < await desk.feeder.turn() <= 0.2
    assert (await desk.json("GET", "/api/reruns/1"))["queued"] == 10
    await desk.feeder.turn()
    assert (await desk.json("GET", "/api/reruns/1"))["queued"] == 10


async def test_a_target_that_takes_nothing_holds_up_its_own_rerun_only(desk: Desk) -> None:
    await desk.store.accept([arrival(f"evt_{n}", type="lost") for n in range(2 * STEP)])
    await desk.json("POST", "/api/reruns", {"source": "demo", "to": ["shop"]}, 202)
    await desk.json("POST", "/api/reruns", {"source": "demo", "to": ["handler"]}, 202)
    with anyio.fail_after(20):
        while await desk.end_all("done") or (await desk.json("GET", "/api/reruns/2"))["state"] == "running":
            await desk.feeder.turn()
    assert (await desk.json("GET", "/api/reruns/1"))["queued"] == STEP
    assert (await desk.json("GET", "/api/reruns/2"))["done"] == 2 * STEP


@given(st.floats(0.001, 100_000))
def test_a_step_is_never_empty_and_never_more_than_a_second_of_its_rate(rate: float) -> None:
    assert 1 <= step_size(rate) <= max(1, min(STEP, math.ceil(rate)))
