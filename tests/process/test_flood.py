"""What anybody outside can cause fills no log, whatever is wrong on our side."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator

import pytest

from perform.calls import CALLERS, ask
from process.rig import Server, clean_stop, parse
from process.servers import Serve, shared

pytestmark = pytest.mark.process

COUNT = 300
POST = b"POST /in/%s HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: %d\r\nContent-Length: 2\r\n\r\n{}"
FAILING = """
from oncebox import Reply, Request, Transaction, operation

@operation("breaks", public=True)
def breaks(request: Request, db: Transaction) -> Reply:
    raise ConnectionError(request.key)

@operation("gives_up", public=True, retry_safe=True)
async def gives_up(request: Request) -> Reply:
    raise ConnectionError(request.key)

@operation("unsendable", public=True)
def unsendable(request: Request, db: Transaction) -> object:
    return object()
"""
RED = "create trigger red before insert on {} begin select raise(abort, 'it is all wrong'); end"


def lines(server: Server, texts: list[bytes]) -> tuple[Counter[int], int]:
    """The statuses of the answers to these requests, and how many lines the log got for them."""
    before = len(server.log().splitlines())
    found = Counter(parse(server.raw(text, timeout=5)).status for text in texts)
    return found, len(server.log().splitlines()) - before


def test_events_that_cannot_be_stored_are_told_seldom(serve: Serve) -> None:
    server = serve().start()
    with contextlib.closing(sqlite3.connect(server.database, isolation_level=None)) as outside:
        outside.execute(RED.format("events"))
        found, told = lines(server, [POST % (b"demo", n) for n in range(COUNT)])
        assert found == {503: COUNT}
        assert 1 <= told <= 6, server.log()[-3000:]
        outside.execute("drop trigger red")
    assert server.post("at last").status == 202
    clean_stop(server)


@pytest.mark.parametrize("operation", ["breaks", "gives_up", "unsendable"])
def test_operations_that_fail_are_told_seldom(serve: Serve, operation: str) -> None:
    server = serve(handlers=FAILING, config=CALLERS).start()
    found, told = lines(server, [ask(operation, str(n)) for n in range(COUNT)])
    assert found == {500: COUNT}
    assert 1 <= told <= 3, server.log()[-3000:]
    clean_stop(server)


def test_calls_that_cannot_be_stored_are_told_seldom(serve: Serve) -> None:
    server = serve(handlers=FAILING, config=CALLERS).start()
    with contextlib.closing(sqlite3.connect(server.database, isolation_level=None)) as outside:
        outside.execute(RED.format("operations"))
        found, told = lines(server, [ask("gives_up", str(n)) for n in range(COUNT)])
        assert set(found) <= {500, 503}
        assert told <= 6, server.log()[-3000:]
        outside.execute("drop trigger red")
    clean_stop(server)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all rubbish: what is told of each request shows beside any other."""
    with shared(Server(tmp_path_factory.mktemp("flood") / "inbox")) as server:
        yield server


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        POST % (b"demo", 1) + b"no request\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /in/demo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n",
        b"POST /in/demo HTTP/1.1\r\nUpgrade: h2c\r\nConnection: upgrade\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /in/demo HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        b"POST /in/%s HTTP/1.1\r\nContent-Length: 0\r\n\r\n" % (b"x" * 1000),
        b"POST /in/demo HTTP/1.1\r\nForwarded: for=1\r\nContent-Length: 0\r\n\r\n",
        b"GET /in/demo HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"GET http://[:: HTTP/1.1\r\n\r\n",
    ],
)
def test_rubbish_is_told_seldom(plain: Server, text: bytes) -> None:
    found, told = lines(plain, [text] * 60)
    assert sum(found.values()) == 60
    assert told <= 2, plain.log()[-3000:]
