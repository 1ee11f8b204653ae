"""The inbox inside somebody else's application: each has its own paths, and nothing of one touches the other's."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from litestar import Litestar, Request, Response, get, post
from litestar.config.compression import CompressionConfig
from litestar.config.cors import CORSConfig
from litestar.config.csrf import CSRFConfig
from litestar.connection import ASGIConnection
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware.rate_limit import RateLimitConfig
from litestar.middleware.session.client_side import CookieBackendConfig
from litestar.params import FromPath
from litestar.testing import AsyncTestClient, TestClient
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from oncebox.config import Config, load
from oncebox.errors import ConfigError, EmitError, ForbiddenSQL, StoreError
from oncebox.plugin import OnceboxPlugin, create_app
from oncebox.store import Transaction
from oncebox.store.lock import read_lock

pytestmark = pytest.mark.anyio

TOML = """
handlers = [{handlers}]
[tokens]
boss = "plain:boss-token"
[store]
path = "{name}.db"
[sources.demo]
id = "header:Idempotency-Key"
unsigned = true
[sources.mail]
internal = true
[targets.post]
command = ["true"]
[[routes]]
source = "mail"
to = "post"
"""
BOSS = {"authorization": "Bearer boss-token"}
BASE = "http://127.0.0.1"


def configured(folder: Path, name: str = "inbox", more: str = "", handlers: str = "") -> Config:
    path = folder / f"{name}.toml"
    path.write_text(TOML.format(name=name, handlers=handlers) + more)
    return load(path, environ={}, overrides={})


@get("/orders", sync_to_thread=False)
def orders() -> str:
    return "the host's own"


@post("/in/demo", status_code=200, sync_to_thread=False)
def own_in() -> str:
    return "the host's own, too"


@get("/inboxes/{number:int}", sync_to_thread=False)
def own_inboxes(number: FromPath[int]) -> int:
    return number


def host(*plugins: OnceboxPlugin, **more: Any) -> Litestar:
    routes = [orders, own_in, own_inboxes, *more.pop("routes", ())]
    return Litestar(routes, plugins=list(plugins), logging_config=None, **more)


@asynccontextmanager
async def asking(app: Litestar) -> AsyncIterator[AsyncTestClient[Litestar]]:
    async with AsyncTestClient(app, base_url=BASE, raise_server_exceptions=True) as client:
        yield client


async def test_everything_is_below_the_path_and_the_hosts_paths_stay_its_own(tmp_path: Path) -> None:
    async with asking(host(OnceboxPlugin(configured(tmp_path)))) as client:
        sent = {"idempotency-key": "one"}
        first = await client.post("/inbox/in/demo", headers=sent, content=b'{"a": 1}')
        again = await client.post("/inbox/in/demo", headers=sent, content=b'{"a": 1}')
        assert (first.status_code, again.status_code, again.content) == (202, 202, first.content)
        assert again.headers["idempotent-replayed"] == "true"
        assert (await client.get("/inbox/healthz")).json()["alive"]
        assert (await client.head("/inbox/readyz")).status_code == 200
        event = (await client.get("/inbox/api/events/1", headers=BOSS)).json()
        assert (event["source"], event["id"]) == ("demo", "one")
        ordered = await client.post("/inbox/api/reruns", headers=BOSS, json={"seqs": [1]})
        assert (await client.get(ordered.headers["location"], headers=BOSS)).json()["id"] == 1
        assert (await client.get("/inbox/api/events")).status_code == 401
        schema = (await client.get("/inbox/schema/openapi.json", headers=BOSS)).json()
        assert schema["servers"] == [{"url": "/inbox"}]
        assert "/api/events" in schema["paths"]
        assert (await client.get("/orders")).text == "the host's own"
        assert (await client.post("/in/demo")).text == "the host's own, too"
        assert (await client.get("/inboxes/7")).text == "7"
        assert (await client.get("/healthz")).status_code == 404


async def test_the_hosts_openapi_knows_nothing_of_the_inbox(tmp_path: Path) -> None:
    async with asking(host(OnceboxPlugin(configured(tmp_path)))) as client:
        schema = (await client.get("/schema/openapi.json")).json()
        assert sorted(schema["paths"]) == ["/in/demo", "/inboxes/{number}", "/orders"]
        assert schema["info"]["title"] != "Oncebox"


TOUCHED: list[str] = []


class Reads:
    """A middleware as hosts have them: it reads the body, and changes what is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        TOUCHED.append("middleware")
        await receive()
        await self.app(scope, receive, send)


def teapot(_request: Request[Any, Any, Any], _error: Exception) -> Response[str]:
    return Response("the host's words", status_code=418)


async def refuse(_connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
    raise NotAuthorizedException("the host's guard")


async def stamp(message: Message, scope: Scope) -> None:
    TOUCHED.append("before_send")
    if message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], (b"x-host", b"was here")]


async def before(_request: Request[Any, Any, Any]) -> Response[str]:
    return Response("the host's before_request")


def after(response: Response[Any]) -> Response[Any]:
    response.headers["x-host"] = "was here"
    return response


async def failed(_error: Exception, _scope: Scope) -> None:
    TOUCHED.append("after_exception")


def meddling() -> dict[str, Any]:
    """Everything that an application can put around its routes."""
    return {
        "middleware": [
            CookieBackendConfig(secret=b"0123456789abcdef").middleware,
            RateLimitConfig(rate_limit=("second", 1)).middleware,
            Reads,
        ],
        "exception_handlers": {HTTPException: teapot, Exception: teapot, 404: teapot, 500: teapot},
        "guards": [refuse],
        "before_send": [stamp],
        "before_request": before,
        "after_request": after,
        "after_exception": [failed],
        "compression_config": CompressionConfig(backend="gzip", minimum_size=1),
        "cors_config": CORSConfig(allow_origins=["*"]),
        "csrf_config": CSRFConfig(secret="secret"),
        "allowed_hosts": ["nowhere.example"],
        "response_headers": [ResponseHeader(name="x-host", value="was here")],
        "request_max_body_size": 1,
    }


ASKED: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("POST", "/in/demo", {"idempotency-key": "one"}),
    ("POST", "/in/demo", {"idempotency-key": "one"}),
    ("POST", "/in/demo", {}),
    ("POST", "/in/nobody", {"idempotency-key": "one"}),
    ("PUT", "/in/demo", {}),
    ("POST", "/do/nothing", {"idempotency-key": "one"}),
    ("GET", "/api/events", BOSS),
    ("GET", "/api/events", {}),
    ("GET", "/api/events?limit=x", BOSS),
    ("GET", "/api/events/99", BOSS),
    ("GET", "/api/events/1/body", BOSS),
    ("POST", "/api/reruns", BOSS),
    ("GET", "/nowhere", {}),
    ("GET", "/readyz", {}),
    ("HEAD", "/healthz", {}),
    ("DELETE", "/healthz", {}),
    ("OPTIONS", "/in/demo", {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}),
)


async def answers(app: Litestar, path: str) -> list[tuple[Any, ...]]:
    async with asking(app) as client:
        got = []
        for method, below, headers in ASKED:
            if method == "GET":
                await replay_is_written(client, path)
            sent = {"accept-encoding": "gzip", "origin": BASE, **headers}
            answer = await client.request(
                method, f"{path}{below}", headers=sent, content=b'{"a": "' + b"a" * 2000 + b'"}'
            )
            kept = {k: v for k, v in answer.headers.items() if k != "location"}
            got.append((method, below, answer.status_code, kept, bare(answer.text)))
        return got


async def replay_is_written(client: AsyncTestClient[Litestar], path: str) -> None:
    """Replays are counted a moment later."""
    event: Any = {"last_replay_at": None}
    with anyio.fail_after(10):
        while event["last_replay_at"] is None:
            await anyio.sleep(0.01)
            event = (await client.get(f"{path}/api/events/1", headers=BOSS)).json()


def bare(text: str) -> str:
    """Without what differs from one file to the next."""
    import re

    text = re.sub(r'"boot":"\w+"', "", text)
    return re.sub(r'"(received_at|processed_at|last_replay_at|last_at)":"[^"]*"', "", text)


async def test_nothing_of_the_host_touches_our_answers(tmp_path: Path) -> None:
    alone, _ = create_app(configured(tmp_path, "alone"))
    expected = await answers(alone, "")
    TOUCHED.clear()
    got = await answers(host(OnceboxPlugin(configured(tmp_path)), **meddling()), "/inbox")
    assert [one[2] for one in got] == [
        202,
        202,
        400,
        404,
        405,
        401,
        200,
        401,
        400,
        404,
        200,
        400,
        404,
        200,
        200,
        405,
        405,
    ]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours == theirs
    assert TOUCHED == []


async def test_the_hosts_own_routes_still_have_what_is_around_them(tmp_path: Path) -> None:
    around = meddling()
    del around["guards"], around["before_request"], around["allowed_hosts"]
    async with asking(host(OnceboxPlugin(configured(tmp_path)), **around)) as client:
        TOUCHED.clear()
        answer = await client.get("/orders")
        assert (answer.status_code, "was here" in answer.headers["x-host"]) == (200, True)
        assert set(TOUCHED) == {"middleware", "before_send"}
        assert (await client.get("/nowhere")).text == "the host's words"


async def test_guards_of_the_host_stand_before_the_api_behind_its_token(tmp_path: Path) -> None:
    async with asking(host(OnceboxPlugin(configured(tmp_path), guards=[refuse]))) as client:
        answer = await client.get("/inbox/api/stats", headers=BOSS)
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
        assert answer.json()["detail"] == "the host's guard"
        assert (await client.get("/inbox/schema/openapi.json", headers=BOSS)).status_code == 401
        assert "send a token" in (await client.get("/inbox/api/stats")).json()["detail"]
        assert (await client.get("/inbox/healthz")).status_code == 200
        assert (await client.post("/inbox/in/demo", headers={"idempotency-key": "e"})).status_code == 202


async def test_two_inboxes_on_two_files_live_in_one_application(tmp_path: Path) -> None:
    one = OnceboxPlugin(configured(tmp_path, "one"), "/one")
    two = OnceboxPlugin(configured(tmp_path, "two"), "/two")

    @get("/which")
    async def which(inbox: NamedDependency[OnceboxPlugin]) -> str:
        return inbox.path

    async with asking(host(one, two, routes=[which])) as client:
        told = [
            (await client.post(f"{path}/in/demo", headers={"idempotency-key": "e"})).headers.get("idempotent-replayed")
            for path in ("/one", "/two", "/two")
        ]
        assert told == [None, None, "true"]
        for path in ("/one", "/two"):
            events = (await client.get(f"{path}/api/events", headers=BOSS)).json()["events"]
            assert [event["id"] for event in events] == ["e"]
        assert (await client.get("/which")).text == "/one"


@pytest.mark.parametrize("path", ["/", "", "/in"])
async def test_a_path_that_would_hide_the_hosts_routes_stops_the_start(tmp_path: Path, path: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with asking(host(OnceboxPlugin(configured(tmp_path), path))):
            pass
    assert caught.group_contains(ConfigError, match=r"would hide routes of the application \(/")
    assert not (tmp_path / "inbox.db").exists()


@pytest.mark.parametrize("path", ["inbox", "/in box", "/{id:int}", "/a//b", "/inbox?x"])
def test_a_path_that_is_none_is_refused_at_once(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match='such as "/inbox"'):
        OnceboxPlugin(configured(tmp_path), path)


def test_a_configuration_that_is_wrong_is_refused_at_once(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[sorces.demo]")
    with pytest.raises(ConfigError, match="sorces"):
        OnceboxPlugin(str(wrong))


async def test_a_host_that_was_given_a_root_path_is_no_obstacle(tmp_path: Path) -> None:
    app = host(OnceboxPlugin(configured(tmp_path)))
    async with app.lifespan():
        for path in ("/shop/inbox/in/demo", "/inbox/in/demo", "/shop//inbox//in/demo"):
            answer = await called(app, path, root="/shop")
            assert answer[0]["status"] == 202, answer
        assert (await called(app, "/shop/inbox/healthz", root="/shop", method="GET"))[0]["status"] == 200
        assert (await called(app, "/shop/orders", root="/shop", method="GET"))[0]["status"] == 200
        assert (await called(app, "/shopping/inbox/healthz", root="/shop", method="GET"))[0]["status"] == 404


async def called(
    app: Litestar, path: str, *, root: str = "", method: str = "POST", body: bytes = b"{}", **headers: str
) -> list[Any]:
    """One request as a sparing server makes it: no raw path, no state, no client."""
    scope: Any = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "root_path": root,
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"idempotency-key", path.encode()),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ],
        "client": None,
        "server": ("127.0.0.1", 8123),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


async def test_commands_find_the_application_once_a_request_has_said_where_it_is(tmp_path: Path) -> None:
    config = configured(tmp_path)
    app = host(OnceboxPlugin(config))
    async with asking(app):
        told = read_lock(config.store.path)
        assert told is not None
        assert told.address == ""
        await called(app, "/orders", method="GET")
        told = read_lock(config.store.path)
        assert told is not None
        assert (told.held, told.address) == (True, "http://127.0.0.1:8123/inbox")


@pytest.mark.parametrize("framing", [{"content-length": "2"}, {"transfer-encoding": "chunked"}])
async def test_a_body_that_the_server_has_dropped_is_never_taken_for_an_empty_one(
    tmp_path: Path, framing: Mapping[str, Any]
) -> None:
    app = host(OnceboxPlugin(configured(tmp_path)))
    async with app.lifespan():
        answer = await called(app, "/inbox/in/demo", body=b"", upgrade="h2c", **framing)
        assert answer[0]["status"] == 400
        assert b"Upgrade" in answer[1]["body"]
        assert (
            b'"events":[]'
            in (await called(app, "/inbox/api/events", method="GET", authorization=BOSS["authorization"]))[1]["body"]
        )
        assert (await called(app, "/inbox/in/demo", upgrade="h2c", **framing))[0]["status"] == 202


async def test_before_and_after_its_lifespan_the_inbox_says_that_it_sleeps(tmp_path: Path) -> None:
    plugin = OnceboxPlugin(configured(tmp_path))
    app = host(plugin)
    for _ in range(2):
        start, body = await called(app, "/inbox/in/demo")
        assert start["status"] == 503
        assert b"lifespan" in body["body"]
        with pytest.raises(StoreError, match="the inbox is not running"):
            await plugin.transaction(lambda db: db.execute("select 1"))
        async with asking(app) as client:
            assert (await client.get("/inbox/readyz")).status_code == 200
    assert app.before_send == []


def test_the_plain_test_client_runs_it(tmp_path: Path) -> None:
    with TestClient(host(OnceboxPlugin(configured(tmp_path))), base_url=BASE) as client:
        assert client.post("/inbox/in/demo", headers={"idempotency-key": "e"}).status_code == 202


def add(db: Transaction, sku: str, *, count: int = 1) -> int:
    db.execute("create table if not exists orders (sku text not null, count integer not null) strict")
    db.execute("insert into orders values (?, ?)", (sku, count))
    db.emit("mail", id=sku, body={"sku": sku})
    return count


def stored(db: Transaction) -> list[tuple[Any, ...]]:
    return db.execute("select sku, count from orders")


async def test_the_host_writes_its_own_tables_and_emits_in_one_transaction(tmp_path: Path) -> None:
    plugin = OnceboxPlugin(configured(tmp_path))
    async with asking(host(plugin)) as client:
        assert await plugin.transaction(add, "hat", count=2) == 2
        with pytest.raises(ZeroDivisionError):
            await plugin.transaction(lambda db: add(db, "coat") / 0)
        assert await plugin.transaction(stored) == [("hat", 2)]
        events = (await client.get("/inbox/api/events", headers=BOSS)).json()["events"]
        assert [(event["source"], event["id"]) for event in events] == [("mail", "hat")]


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        (lambda db: db.execute("delete from events"), ForbiddenSQL),
        (lambda db: db.execute("commit"), ForbiddenSQL),
        (lambda db: db.emit("demo", id="x"), EmitError),
    ],
)
async def test_what_belongs_to_the_inbox_is_refused_to_the_host_as_to_handlers(
    tmp_path: Path, fails: Callable[[Transaction], Any], error: type[Exception]
) -> None:
    plugin = OnceboxPlugin(configured(tmp_path))
    async with asking(host(plugin)):
        with pytest.raises(error):
            await plugin.transaction(fails)
        assert await plugin.transaction(lambda db: db.execute("select 1")) == [(1,)]


async def test_an_async_function_is_refused_before_anything_happens(tmp_path: Path) -> None:
    plugin = OnceboxPlugin(configured(tmp_path))

    async def work(db: Transaction) -> None:
        db.execute("select 1")

    async with asking(host(plugin)):
        with pytest.raises(TypeError, match="takes a plain function"):
            await plugin.transaction(work)  # type: ignore[unused-coroutine]  # the mistake that is meant


HANDLERS = """
import host_resource
from oncebox import Event, on

@on("demo")
async def call(event: Event) -> None:
    host_resource.calls.append((event.id, host_resource.is_open))
"""


async def test_handlers_have_what_the_hosts_lifespan_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "host_resource.py").write_text("is_open = False\ncalls = []\n")
    (tmp_path / "plugin_handlers.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    resource: Any = importlib.import_module("host_resource")

    plugin = OnceboxPlugin(configured(tmp_path, handlers='"plugin_handlers"'))

    def asleep() -> bool:
        with pytest.raises(StoreError):
            str(plugin.parts)
        return True

    @asynccontextmanager
    async def opened(_app: Litestar) -> AsyncIterator[None]:
        resource.is_open = asleep()
        yield
        resource.is_open = not asleep()

    app = host(plugin, lifespan=[opened])
    async with asking(app) as client:
        for number in range(20):
            await client.post("/inbox/in/demo", headers={"idempotency-key": str(number)})
    async with asking(app) as client:
        while (await client.get("/inbox/api/stats", headers=BOSS)).json()["by_state"]["done"] < 20:
            pass
    assert sorted({id for id, _ in resource.calls}) == sorted(str(number) for number in range(20))
    assert {is_open for _, is_open in resource.calls} == {True}


async def test_a_second_application_on_the_file_is_told_that_it_is_one_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tmp_path)
    async with asking(host(OnceboxPlugin(config))) as client:
        with pytest.raises(ExceptionGroup) as caught:
            async with asking(host(OnceboxPlugin(config))):
                pass
        assert caught.group_contains(StoreError, match="one process: of several workers")
        assert (await client.get("/inbox/readyz")).status_code == 200
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "does not start" in line
    assert "--workers 1" in line


async def test_the_hosts_process_stays_as_it_was(tmp_path: Path) -> None:
    def settings() -> list[Any]:
        root = logging.getLogger()
        handlers = [*root.handlers, *logging.getLogger("oncebox").handlers]
        signals = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)]
        return [handlers, root.level, logging.getLogger("oncebox").level, signals, sys.getswitchinterval()]

    before = settings()
    async with asking(host(OnceboxPlugin(configured(tmp_path)))):
        assert settings() == before
    assert settings() == before


@pytest.mark.parametrize(
    ("public", "warned"),
    [("https://example.com", True), ("https://example.com/inbox", False), ("https://example.com/x/inbox/", False)],
)
async def test_a_public_url_without_the_path_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, public: str, warned: bool
) -> None:
    config = configured(tmp_path, more=f'[server]\npublic_url = "{public}"\n')
    async with asking(host(OnceboxPlugin(config))):
        pass
    assert any("does not end in /inbox" in record.getMessage() for record in caplog.records) is warned
