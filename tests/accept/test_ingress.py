"""The ingress behind a real server on a socket: paths, methods, odd bodies, clients that leave."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from litestar import Litestar

from accept.conftest import OpenInbox
from accept.requests import Sender
from oncebox.accept.ingress import create_ingress, read_request
from oncebox.config import MissingId, Source, SourceReply
from oncebox.secret import Secret

pytestmark = [pytest.mark.anyio, pytest.mark.process]

URL_SIGNED = {"scheme": "hmac", "from": "header:X-Signature", "message": "{url}{body}"}


class Client:
    """Speaks raw bytes to the server."""

    def __init__(self, port: int, sender: Sender) -> None:
        self.port = port
        self.sender = sender

    async def raw(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send exact bytes; the status, headers and body of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
            status, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(0 if data.startswith(b"HEAD") else int(headers.get("content-length", 0)))
            return int(status.split()[1]), headers, body
        finally:
            writer.close()

    async def send(
        self, target: str, body: bytes = b"", *headers: str, method: str = "POST"
    ) -> tuple[int, dict[str, str], Any]:
        lines = [f"{method} {target} HTTP/1.1", "Host: box.example", f"Content-Length: {len(body)}", *headers, "", ""]
        status, answered, answer = await self.raw("\r\n".join(lines).encode("utf-8") + body)
        return status, answered, json.loads(answer) if answer else None

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return await self.sender.rows(sql)


def write_from_outside(path: Path) -> None:
    """Raises sqlite3.OperationalError if somebody has kept a transaction open for a second."""
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as db:
        db.execute("begin immediate")
        db.execute("rollback")


@pytest.fixture
async def client(open_inbox: OpenInbox, source: Callable[..., Source]) -> AsyncIterator[Client]:
    """A server with three sources: demo, small (100 bytes) and signs (its URL, as configured)."""
    url = "https://hooks.example.com/in/signs"
    signs = source(signature=URL_SIGNED, secrets=(Secret("x", "s3cret"),), id="query:id", url=url)
    keys, unique = (Secret("x", "s3cret"),), MissingId("unique")
    handshakes = {
        "events": Source(preset="cloudevents", secrets=keys),
        "files": Source(preset="dropbox", secrets=keys, on_missing_id=unique),
        "empty": source(reply=SourceReply(status=204)),
        # No configuration has these any more, but a file may.
        "no-content": source(reply=SourceReply(status=204, body="x")),
        "reset": source(reply=SourceReply(status=205, body="x")),
    }
    sender = await open_inbox({"demo": source(), "small": source(max_body=100), "signs": signs, **handshakes})
    app = Litestar([create_ingress(sender.inbox)], openapi_config=None)
    config = uvicorn.Config(app, log_config=None, lifespan="off", http="httptools")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.startup([listener])
        yield Client(listener.getsockname()[1], sender)
        server.force_exit = True
        await server.shutdown([listener])


async def test_an_event_gets_its_receipt_and_a_replay_the_same(client: Client) -> None:
    status, headers, first = await client.send("/in/demo", b'{"id": "a"}')
    assert (status, headers["content-type"], first["id"]) == (202, "application/json", "a")
    assert "idempotent-replayed" not in headers
    status, headers, again = await client.send("/in/demo", b'{"id": "a"}')
    assert (status, headers["idempotent-replayed"], again) == (202, "true", first)


async def test_many_twins_at_once_are_one_event_and_one_first_call(client: Client) -> None:
    answers = await asyncio.gather(*(client.send("/in/demo", b'{"id": "twin"}') for _ in range(16)))
    assert len({json.dumps(body) for _, _, body in answers}) == 1
    assert sum("idempotent-replayed" not in headers for _, headers, _ in answers) == 1
    assert await client.rows("select count(*) from events") == [(1,)]


async def test_paths_that_name_no_source_are_404(client: Client) -> None:
    nowhere = ("/in/", "/in", "/in/demo/more", "/in/a%2Fb", "/index")
    unknown = (
        "/in/nobody",
        "/in/DEMO",
        "/in/%ff%fe",
        "/in/%zz",
        "/in/%00",
        "/in/.",
        "/in/demo%20",
        "/in/" + "x" * 9000,
    )
    for target in nowhere + unknown:
        for method in ("POST", "GET", "DELETE"):
            status, headers, problem = await client.send(target, b"{}" if method == "POST" else b"", method=method)
            assert (status, headers["content-type"]) == (404, "application/problem+json"), target
            assert problem["type"] == f"urn:oncebox:problem:{'not-found' if target in nowhere else 'unknown-source'}"


async def test_other_ways_to_write_a_source_reach_it(client: Client) -> None:
    for target in ("/in/demo", "/in/demo/", "/in//demo", "/in/%64emo", "/in/demo?x=1"):
        assert (await client.send(target, b'{"id": 1}'))[0] == 202


async def test_other_methods_are_405_and_told_which_are_taken(client: Client) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND"):
        status, headers, problem = await client.send("/in/demo", method=method)
        assert (status, headers["allow"], headers["content-type"]) == (405, "POST", "application/problem+json")
        assert problem is None if method == "HEAD" else problem["status"] == 405


async def test_chunked_bodies_are_read_and_counted(client: Client) -> None:
    head = b"POST /in/small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _, body = await client.raw(head + b'4\r\n{"id\r\n7\r\n": "c"}\r\n0\r\n\r\n')
    assert (status, json.loads(body)["id"]) == (202, "c")
    status, headers, _ = await client.raw(head + b"64\r\n" + b"x" * 100 + b"\r\n1\r\nx\r\n")
    assert (status, headers["connection"]) == (413, "close")


async def test_a_length_over_the_limit_is_refused_before_the_body_comes(client: Client) -> None:
    status, headers, _ = await client.raw(b"POST /in/small HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n")
    assert (status, headers["connection"]) == (413, "close")
    expecting = b"POST /in/small HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\nExpect: 100-continue\r\n\r\n"
    assert (await client.raw(expecting))[0] == 413


async def test_exactly_the_limit_is_taken(client: Client) -> None:
    body = b'{"id": "' + b"x" * 90 + b'"}'
    assert len(body) == 100
    assert (await client.send("/in/small", body))[0] == 202
    assert (await client.send("/in/small", body + b" "))[0] == 413


async def test_the_signed_url_is_the_configured_one_with_the_query_as_it_was_written(client: Client) -> None:
    def signature(url: str) -> str:
        return "X-Signature: " + hmac.new(b"s3cret", url.encode() + b"{}", hashlib.sha256).hexdigest()

    good = signature("https://hooks.example.com/in/signs?id=a%20b")
    assert (await client.send("/in/%73igns?id=a%20b", b"{}", good))[0] == 202
    assert (await client.send("/in/signs?id=a+b", b"{}", good))[0] == 401
    as_called = signature("http://box.example/in/signs?id=a%20b")
    assert (await client.send("/in/signs?id=a%20b", b"{}", as_called))[0] == 401
    assert await client.rows("select id from events") == [("a b",)]


async def test_header_bytes_of_all_kinds_are_stored_as_text(client: Client) -> None:
    assert (await client.send("/in/demo", b'{"id": 1}', "X-Name: zoë \x80"))[0] == 202
    ((headers,),) = await client.rows("select headers from payloads")
    name = dict(json.loads(headers))["x-name"]
    assert name.encode("latin-1").decode("utf-8") == "zoë \x80"


async def test_a_length_that_lies_never_makes_an_event_of_another_size(client: Client) -> None:
    head = b"POST /in/demo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    assert (await client.raw(head + b'{"id": 1} and something else'))[0] in {202, 400}
    assert (await client.send("/in/demo", b'{"id": 2}'))[0] == 202
    assert (
        await client.rows("select body from payloads where body not in (x'7b226964223a20317d', x'7b226964223a20327d')")
        == []
    )


async def test_a_nul_byte_in_a_header_does_not_pass_the_server(client: Client) -> None:
    head = b"POST /in/demo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nX-Name: a\0b\r\n\r\n"
    assert (await client.raw(head + b'{"id": 1}'))[0] == 400
    assert await client.rows("select count(*) from events") == [(0,)]


async def test_any_host_is_answered(client: Client) -> None:
    for host in ("", "evil.example", "127.0.0.1:1", "xn--bcher-kva.example"):
        body = b'{"id": "%s"}' % (host.encode() or b"none")
        head = f"POST /in/demo HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        assert (await client.raw(head + body))[0] == 202


@pytest.mark.parametrize("rounds", [150, pytest.param(2000, marks=pytest.mark.torture)])
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(client: Client, rounds: int) -> None:
    chance = random.Random(7)

    async def abort(number: int) -> None:
        body = b'{"id": "abort-%d"}' % number
        data = b"POST /in/demo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        _, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(data[: chance.randrange(len(data) * 2)])
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        writer.transport.abort()

    before = asyncio.all_tasks()
    with suppress(ConnectionError):
        await asyncio.gather(*(abort(number) for number in range(rounds)))
    status, _, _ = await client.send("/in/demo", b'{"id": "after"}')
    assert status == 202
    await asyncio.to_thread(write_from_outside, client.sender.store.path)
    left = asyncio.all_tasks() - before
    assert not left or not (await asyncio.wait(left, timeout=5))[1]


async def test_a_websocket_is_turned_down(client: Client) -> None:
    upgrade = (
        b"GET /in/demo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert (await client.raw(upgrade))[0] in {403, 405}


async def test_the_headers_of_a_handshake_reach_the_sender(client: Client) -> None:
    status, headers, _ = await client.send("/in/events", b"", "WebHook-Request-Origin: shop.example", method="OPTIONS")
    assert (status, headers["webhook-allowed-origin"], headers["webhook-allowed-rate"]) == (200, "shop.example", "*")
    status, headers, body = await client.raw(b"GET /in/files?challenge=a%3Cb HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, headers["x-content-type-options"], body) == (200, "nosniff", b"a<b")
    assert await client.rows("select count(*) from events") == [(0,)]


async def test_a_reply_without_content_announces_no_length(client: Client) -> None:
    first, again = [await client.send("/in/empty", b'{"id": 1}') for _ in range(2)]
    for status, headers, _ in (first, again):
        assert status == 204
        assert not {"content-length", "transfer-encoding"} & headers.keys()
    assert again[1]["idempotent-replayed"] == "true"


async def test_a_stored_reply_that_may_have_no_body_is_sent_without_it(client: Client) -> None:
    for name, status, length in (("no-content", 204, None), ("reset", 205, "0")):
        for _ in range(2):
            answered, headers, body = await client.send(f"/in/{name}", b'{"id": 1}')
            assert (answered, headers.get("content-length"), body) == (status, length, None)


async def nothing() -> Any:
    raise AssertionError("nothing is read yet")


async def test_without_a_public_url_the_callers_host_is_the_url() -> None:
    scope: Any = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "raw_path": b"/in/a%2Fb",
        "query_string": b"x=%20&y",
        "headers": [(b"host", b"box:8640"), (b"content-length", b"12")],
        "client": None,
    }
    found = read_request(scope, nothing)
    assert (found.url, found.query, found.declared, found.peer) == (
        "http://box:8640/in/a%2Fb?x=%20&y",
        "x=%20&y",
        12,
        None,
    )
    for length in (b"", b"-1", b"1" * 5000, b"\xb2", b"1, 1"):
        scope["headers"] = [(b"content-length", length)]
        assert read_request(scope, nothing).declared is None
