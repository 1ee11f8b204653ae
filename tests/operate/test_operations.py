"""Calls of operations as people see them, over the API and a real store; and the schema that describes them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from hashlib import sha256
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from litestar import Litestar

from oncebox.config import Config
from oncebox.model import Call, Result
from oncebox.operate.api import create_api
from oncebox.operate.failure import EXCEPTION_HANDLERS
from oncebox.operate.openapi import Described, with_operations
from oncebox.operate.operations import create_operation_routes
from oncebox.perform.decision import decide
from oncebox.store import DONE, FAILED, UNKNOWN, Ended
from oncebox.store.callbook import Wanted, list_calls
from oncebox.store.operations import find_call
from oncebox.store.sqlite import SQLiteStore
from operate.conftest import NOW, SECOND

pytestmark = pytest.mark.anyio

MADE = Result(201, (("content-type", "application/json"), ("location", "/orders/7")), b'{"id":7}')
FREE: dict[str, object] = {"as": "free"}
EMPTY: dict[str, object] = {"as": "done", "reply": {"status": 204}}
LATER = NOW + 60 * SECOND


def call(key: str, *, caller: str = "acme", operation: str = "orders", at: int = NOW) -> Call:
    print_ = sha256(key.encode()).digest()
    return Call(caller=caller, key=key, operation=operation, fingerprint=print_, at=at)


async def make(store: SQLiteStore, one: Call, ended: Ended | None = None) -> None:
    """A call that has ended so, or that still runs."""
    begun = await store.operations.begin(one)
    if ended is not None:
        await store.operations.end(one, begun.attempt, ended, one.at + SECOND)


class Desk:
    """Somebody with a token."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def ask(self, method: str, path: str, body: object = None, token: str = "boss-token") -> httpx.Response:
        headers = {"host": "127.0.0.1:8640", "authorization": f"Bearer {token}"}
        return await self.client.request(method, path, headers=headers, json=body)

    async def json(self, path: str, token: str = "boss-token") -> Any:
        answer = await self.ask("GET", path, token=token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def resolve(self, order: dict[str, object], key: str = "k1", token: str = "boss-token") -> httpx.Response:
        return await self.ask("POST", "/api/operations/resolve", {"caller": "acme", "key": key, **order}, token)

    async def refusal(self, order: dict[str, object], key: str = "k1") -> str:
        answer = await self.resolve(order, key)
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        return f"{answer.status_code} {problem['type'].removeprefix('urn:oncebox:problem:')}: {problem['detail']}"


@pytest.fixture
async def desk(config: Config, store: SQLiteStore) -> AsyncIterator[Desk]:
    app = Litestar(
        create_api(config, store, list, create_operation_routes(store, decide, lambda: LATER)),
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=None,
        logging_config=None,
    )
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8640") as client:
        yield Desk(client)


async def test_calls_are_listed_newest_first_and_with_all_that_is_known(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(DONE, MADE))
    await make(store, call("k2", caller=""), Ended(UNKNOWN, why="TimeoutError: no answer"))
    await make(store, call("k3", operation="refunds"))
    found = await desk.json("/api/operations", "grafana-token")
    assert [(one["key"], one["state"]) for one in found["operations"]] == [
        ("k3", "running"),
        ("k2", "unknown"),
        ("k1", "done"),
    ]
    assert found["next"] is None
    assert found["operations"][2] == {
        "n": 1,
        "caller": "acme",
        "key": "k1",
        "operation": "orders",
        "state": "done",
        "attempts": 1,
        "started_at": "2026-11-30T00:53:20.000000Z",
        "finished_at": "2026-11-30T00:53:21.000000Z",
        "status": 201,
        "error": None,
    }
    assert found["operations"][1]["error"] == "TimeoutError: no answer"
    assert found["operations"][1]["finished_at"] is None


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("state=unknown", ["k4", "k2"]),
        ("state=unknown&caller=", ["k4"]),
        ("state=done", ["k1"]),
        ("state=failed", ["k3"]),
        ("state=interrupted", []),
        ("operation=refunds", ["k5"]),
        ("caller=acme&operation=orders", ["k2", "k1"]),
        ("caller=nobody", []),
    ],
)
async def test_calls_are_found_by_state_operation_and_caller(
    desk: Desk, store: SQLiteStore, query: str, keys: list[str]
) -> None:
    await make(store, call("k1"), Ended(DONE, MADE))
    await make(store, call("k2"), Ended(UNKNOWN))
    await make(store, call("k3", caller="other"), Ended(FAILED, why="broken"))
    await make(store, call("k4", caller=""), Ended(UNKNOWN))
    await make(store, call("k5", operation="refunds"))
    assert [one["key"] for one in (await desk.json(f"/api/operations?{query}"))["operations"]] == keys


@pytest.mark.parametrize("filters", ["", "&state=unknown", "&caller=acme"])
async def test_pages_of_calls_leave_out_and_repeat_nothing(desk: Desk, store: SQLiteStore, filters: str) -> None:
    for number in range(7):
        await make(store, call(f"k{number}"), Ended(UNKNOWN))
    keys, cursor = [], ""
    while True:
        page = await desk.json(f"/api/operations?limit=3{filters}{cursor}")
        keys += [one["key"] for one in page["operations"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert keys == [f"k{number}" for number in range(6, -1, -1)]


@pytest.mark.alone
async def test_a_rare_call_is_found_among_many_in_a_moment(store: SQLiteStore) -> None:
    def fill(db: Any) -> None:
        db.execute(
            "with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000) "
            "insert into operations (rowid, caller, key, operation, request_hash, state, started_at) "
            "select i, 'acme', 'k' || i, case i when 5 then 'rare' else 'orders' end, x'', "
            "case i when 7 then 'unknown' else 'done' end, 0 from n"
        )

    await store.change(lambda db, _books: fill(db))
    began = time.monotonic()
    unknown = await store.read(lambda db: list_calls(db, Wanted(limit=50, before=1 << 62, state="unknown")))
    assert [one.n for one in unknown.calls] == [7]
    assert time.monotonic() - began < 0.1
    found: list[int] = []
    before: int | None = 1 << 62
    while before is not None:
        wanted = Wanted(limit=50, before=before, operation="rare")
        page = await store.read(partial(list_calls, wanted=wanted))
        found += [one.n for one in page.calls]
        before = page.next
    assert found == [5]


async def test_a_call_is_found_by_its_caller_and_key_and_by_its_number(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k/1 ?"), Ended(DONE, MADE))
    found = await desk.json("/api/operations/lookup?caller=acme&key=k/1%20%3F", "auditor-token")
    assert found["key"] == "k/1 ?"
    assert found["reply"] == {
        "status": 201,
        "headers": [["content-type", "application/json"], ["location", "/orders/7"]],
        "size": 8,
        "body": '{"id":7}',
    }
    assert await desk.json("/api/operations/1", "auditor-token") == found


async def test_a_reply_that_is_no_text_is_shown_in_base64(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(DONE, Result(200, (), b"\xff\x00")))
    reply = (await desk.json("/api/operations/1"))["reply"]
    assert base64.b64decode(reply["body_base64"]) == b"\xff\x00"
    assert "body" not in reply


async def test_the_body_of_a_reply_is_for_those_who_may_read_bodies(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(DONE, MADE))
    for path in ("/api/operations/1", "/api/operations/lookup?caller=acme&key=k1"):
        reply = (await desk.json(path, "grafana-token"))["reply"]
        assert reply.keys() == {"status", "headers", "size"}


async def test_a_call_without_a_reply_has_none(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    assert (await desk.json("/api/operations/1"))["reply"] is None


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/operations/9", "404 not-found: there is no call 9"),
        ("/api/operations/9223372036854775808", "404 not-found: there is no call"),
        ("/api/operations/lookup?caller=acme&key=k9", '404 not-found: there is no call of caller "acme" with key "k9"'),
        ("/api/operations/lookup?key=k9", "404 not-found: there is no call of callers without a name"),
        ("/api/operations/lookup?caller=acme", "400 bad-request: key: is missing"),
        ("/api/operations?state=unknwon", '400 bad-request: state: "unknwon" is none; did you mean "unknown"?'),
        ("/api/operations?sate=unknown", '400 bad-request: unknown parameter "sate"; did you mean "state"?'),
    ],
)
async def test_questions_without_an_answer_say_why(desk: Desk, path: str, said: str) -> None:
    answer = await desk.ask("GET", path)
    problem = answer.json()
    told = f"{answer.status_code} {problem['type'].removeprefix('urn:oncebox:problem:')}: {problem['detail']}"
    assert told.startswith(said)


async def test_an_unknown_call_that_is_resolved_as_free_may_be_made_again(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    answer = await desk.resolve(FREE)
    assert answer.status_code == 200
    assert answer.json() == {
        "caller": "acme",
        "key": "k1",
        "resolved": "free",
        "status": None,
        "at": "2026-11-30T00:54:20.000000Z",
        "who": "boss",
    }
    assert (await store.operations.begin(call("k1"))).state == "new"


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (
            {"status": 201, "headers": {"Location": "/orders/7"}, "body": {"id": 7, "cents": 12.50}},
            Result(201, (("location", "/orders/7"), ("content-type", "application/json")), b'{"id":7,"cents":12.5}'),
        ),
        ({"status": 200, "body": "made"}, Result(200, (("content-type", "text/plain; charset=utf-8"),), b"made")),
        (
            {"status": 200, "headers": {"Content-Type": "image/png"}, "body_base64": "/wA="},
            Result(200, (("content-type", "image/png"),), b"\xff\x00"),
        ),
        ({"status": 204}, Result(204, (), b"")),
        ({"status": 204, "body": None}, Result(204, (), b"")),
        ({"status": 402, "body": []}, Result(402, (("content-type", "application/json"),), b"[]")),
    ],
)
async def test_an_unknown_call_that_is_resolved_as_done_answers_what_was_given(
    desk: Desk, store: SQLiteStore, reply: dict[str, object], result: Result
) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    answer = await desk.resolve({"as": "done", "reply": reply})
    assert answer.status_code == 200, answer.text
    found = await store.operations.begin(call("k1"))
    assert (found.state, found.result) == ("replayed", result)


async def test_a_number_of_a_given_reply_keeps_its_digits(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    order = b'{"caller":"acme","key":"k1","as":"done","reply":{"status":200,"body":{"n":1.50, "m":9007199254740993}}}'
    headers = {"host": "127.0.0.1:8640", "authorization": "Bearer boss-token"}
    assert (await desk.client.post("/api/operations/resolve", headers=headers, content=order)).status_code == 200
    result = (await store.operations.begin(call("k1"))).result
    assert result is not None
    assert result.body == b'{"n":1.50, "m":9007199254740993}'


async def test_who_decided_is_recorded(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    await desk.resolve(EMPTY)
    acts = await store.read(lambda db: db.execute("select who, what, detail from acts").fetchall())
    assert acts == [("boss", "operation resolved", "acme k1: done with 204")]


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended(DONE, MADE), "409 bad-request: nothing is to be decided of this call: it is done and answers 201"),
        (Ended(FAILED), "409 bad-request: nothing is to be decided of this call: it failed and may be sent again"),
        (None, "409 in-progress: this call is running"),
    ],
)
async def test_only_what_is_unknown_is_decided(desk: Desk, store: SQLiteStore, ended: Ended | None, said: str) -> None:
    await make(store, call("k1"), ended)
    before = await store.read(lambda db: find_call(db, "acme", "k1"))
    assert (await desk.refusal(FREE)).startswith(said)
    assert (await desk.refusal(FREE, "k2")).startswith("404 not-found: there is no call")
    assert await store.read(lambda db: find_call(db, "acme", "k1")) == before


async def test_a_second_decision_does_not_undo_the_first(desk: Desk, store: SQLiteStore) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    assert (await desk.resolve(EMPTY)).status_code == 200
    assert (await desk.refusal(FREE)).startswith("409 bad-request")
    assert (await store.operations.begin(call("k1"))).state == "replayed"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"as": "done"}, "reply: what was it answered?"),
        ({"as": "free", "reply": {"status": 200}}, "reply: a free key has none"),
        ({"as": "lost"}, "Invalid enum value 'lost'"),
        ({}, "Object missing required field `as`"),
        ({"as": "free", "whom": "x"}, "unknown field `whom`"),
        ({"as": "done", "reply": {"status": 503}}, "status: a reply with 503 is never kept"),
        ({"as": "done", "reply": {"status": 429}}, "status: a reply with 429 is never kept"),
        ({"as": "done", "reply": {"status": 99}}, "the status 99 is none that ends a request"),
        ({"as": "done", "reply": {"status": 204, "body": "x"}}, "a reply with status 204 has no body"),
        ({"as": "done", "reply": {"status": 200, "headers": {"X-A": "1"}}}, "headers: X-A would not be kept"),
        ({"as": "done", "reply": {"status": 200, "headers": {"ETag": "a\nb"}}}, "the header ETag is not Latin-1"),
        ({"as": "done", "reply": {"status": 200, "body_base64": "?"}}, "its body cannot be read"),
        ({"as": "done", "reply": {"status": 200, "body_base64": "AA==", "body": 1}}, "a body and a body_base64"),
    ],
)
async def test_a_decision_that_cannot_be_understood_changes_nothing(
    desk: Desk, store: SQLiteStore, order: dict[str, object], said: str
) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    told = await desk.refusal(order)
    assert told.startswith("400 bad-request: ")
    assert said in told
    assert (await store.operations.begin(call("k1"))).state == "unknown"


@pytest.mark.parametrize("token", ["grafana-token", "auditor-token"])
async def test_only_an_admin_decides(desk: Desk, store: SQLiteStore, token: str) -> None:
    await make(store, call("k1"), Ended(UNKNOWN))
    assert (await desk.resolve(FREE, token=token)).status_code == 403
    assert (await store.operations.begin(call("k1"))).state == "unknown"


async def test_the_totals_tell_what_runs_and_what_is_unknown(desk: Desk, store: SQLiteStore) -> None:
    assert (await desk.json("/api/stats"))["operations"] == {"running": 0, "unknown": 0}
    for key, ended in (("k1", None), ("k2", Ended(UNKNOWN)), ("k3", Ended(UNKNOWN)), ("k4", Ended(DONE, MADE))):
        await make(store, call(key), ended)
    assert (await desk.json("/api/stats"))["operations"] == {"running": 1, "unknown": 2}


class Item(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    """What is ordered."""

    items: list[Item]
    email: Annotated[str, msgspec.Meta(pattern="@", examples=["ann@example.com"])]


ORDERS = Described(
    name="orders", methods=("POST", "PUT"), description="Make an order.\n\nOnce.", public=False, shape=Order
)
PINGS = Described(name="pings", methods=("POST",), description="", public=True)


def test_the_schema_has_each_operation_with_its_key_its_body_and_its_problems() -> None:
    schema = with_operations({"paths": {"/healthz": {}}, "components": {"schemas": {"A": {}}}}, [ORDERS, PINGS])
    paths: Any = schema["paths"]
    components: Any = schema["components"]
    assert list(paths) == ["/healthz", "/do/orders", "/do/pings"]
    assert list(paths["/do/orders"]) == ["post", "put"]
    post = paths["/do/orders"]["post"]
    assert (post["summary"], post["description"]) == ("Make an order.", "Make an order.\n\nOnce.")
    [key] = post["parameters"]
    assert (key["name"], key["in"], key["required"]) == ("Idempotency-Key", "header", True)
    assert post["requestBody"]["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}
    assert {"400", "401", "409", "422", "503"} < post["responses"].keys()
    assert post["security"] == [{"caller": []}]
    assert paths["/do/pings"]["post"]["security"] == [{"caller": []}, {}]
    assert components["securitySchemes"] == {"caller": {"type": "http", "scheme": "bearer"}}
    assert components["schemas"].keys() == {"A", "Order", "Item", "OnceboxProblem"}
    assert components["schemas"]["Order"]["required"] == ["items", "email"]


def test_every_reference_of_the_schema_leads_somewhere() -> None:
    schema = with_operations({}, [ORDERS, PINGS])
    references = [part.split('"')[0] for part in json.dumps(schema).split('"$ref": "')[1:]]
    assert references
    for reference in references:
        place: Any = schema
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]
        assert place


class Odd(msgspec.Struct):
    value: complex


class OnceboxUser(msgspec.Struct, rename="camel"):
    first_name: str


def test_a_body_whose_type_has_no_schema_keeps_nothing_else_from_being_told() -> None:
    odd = msgspec.structs.replace(ORDERS, name="odd", shape=Odd)
    user = msgspec.structs.replace(ORDERS, name="users", shape=OnceboxUser)
    schema: Any = with_operations({}, [odd, user])
    assert schema["paths"]["/do/odd"]["post"]["requestBody"]["content"] == {"application/json": {"schema": {}}}
    assert schema["components"]["schemas"]["OnceboxUser"]["required"] == ["firstName"]


def test_without_operations_the_schema_is_as_it_was() -> None:
    assert with_operations({"paths": {"/healthz": {}}}, []) == {"paths": {"/healthz": {}}}
