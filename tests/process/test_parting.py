"""How connections end: each request that came whole has one answer, and what did not has left nothing behind."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perform.calls import CALLERS, MAKING, SECRET, made
from process.rig import TOKEN, Server, parse, until
from process.servers import shared

pytestmark = pytest.mark.process

POST = b"POST /in/demo HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: %s\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
DO = b"POST /do/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + SECRET.encode() + b"\r\n"
API = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
SMALL = """
[sources.small]
id = "header:Idempotency-Key"
unsigned = true
max_body = "1KiB"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here: no connection may break it for the next."""
    folder = tmp_path_factory.mktemp("parting") / "inbox"
    with shared(Server(folder, handlers=MAKING, config=f"{CALLERS}{SMALL}")) as server:
        yield server


def event(id: bytes, body: bytes = b"{}") -> bytes:
    return POST % id + b"Content-Length: %d\r\n\r\n" % len(body) + body


def call(operation: bytes, key: bytes) -> bytes:
    return DO % operation + b"Idempotency-Key: %s\r\nContent-Length: 2\r\n\r\n{}" % key


def all_of(line: socket.socket) -> bytes:
    """Everything until the server hangs up, which it does within the line's time."""
    got = b""
    while chunk := line.recv(65536):
        got += chunk
    return got


def statuses(got: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d+) ", got)]


def half_closed(server: Server, *pieces: bytes) -> bytes:
    """What comes back to a client that says these things and that nothing more follows."""
    with server.connect(5) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(0.05)  # so that they are pieces on the way
            line.sendall(piece)
        line.shutdown(socket.SHUT_WR)
        return all_of(line)


def ids(server: Server) -> set[str]:
    return {id for (id,) in server.rows("select id from events")}


@pytest.mark.parametrize(
    ("name", "pieces", "expected"),
    [
        ("direct", [event(b"hc-direct")], [202]),
        ("task", [event(b"hc-task")[:-1], event(b"hc-task")[-1:]], [202]),
        ("large", [event(b"hc-large", b"x" * 300_000)], [202]),
        ("old", [event(b"hc-old").replace(b"HTTP/1.1", b"HTTP/1.0")], [202]),
        ("expects", [POST % b"hc-expects" + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"], [202]),
        ("operation", [call(b"quick", b"hc-quick")], [201]),
        ("slow operation", [call(b"pay?0.3", b"hc-pay")], [201]),
        ("large answer", [call(b"large", b"hc-large")], [200]),
        ("api", [API], [200]),
        ("nowhere", [b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n"], [404]),
        ("pipelined", [event(b"hc-1") + call(b"quick", b"hc-2") + API + event(b"hc-3")], [202, 201, 200, 202]),
        ("pipelined events", [b"".join(event(b"hc-many-%d" % n) for n in range(300))], [202] * 300),
        ("pipelined behind slow", [call(b"pay?0.3", b"hc-4") + event(b"hc-5")], [201, 202]),
        ("part of another", [event(b"hc-6") + b"POST /in/demo HT"], [202]),
        ("part of a body", [call(b"pay?0.3", b"hc-7") + event(b"hc-half-1")[:-1]], [201]),
        ("nothing", [b""], []),
        ("only a part of a head", [b"POST /in/de"], []),
    ],
)
def test_who_says_that_nothing_more_follows_gets_all_answers(
    server: Server, name: str, pieces: list[bytes], expected: list[int]
) -> None:
    got = half_closed(server, *pieces)
    assert [status for status in statuses(got) if status != 100] == expected, (name, got[:500])
    if name == "large answer":
        assert len(got.partition(b"\r\n\r\n")[2]) == 8 << 20
    until(lambda: not established(server), 2, "the server holds no connection")


def established(server: Server) -> int:
    """The connections that the server holds, by the system's own list."""
    port, count = f":{server.port:04X}", 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_rest = line.split()
        count += local.endswith(port) and state in {"01", "08"}  # established, close-wait
    return count


@pytest.mark.parametrize(
    "piece",
    [
        event(b"half", b"x" * 50)[:-10],
        POST % b"half" + CHUNKED + b"2\r\n{}\r\n",
        POST % b"half" + CHUNKED + b"2\r\n{}\r\n0\r\n",
        POST % b"half" + b"Content-Length: 2\r\n",
        event(b"half", b"x" * 200_000)[:-10],
        event(b"whole") + event(b"half")[:-1],
        call(b"quick", b"half")[:-1],
    ],
)
def test_what_did_not_come_whole_is_not_stored(server: Server, piece: bytes) -> None:
    got = half_closed(server, piece)
    assert statuses(got) in ([], [202])
    assert "half" not in ids(server)
    assert made(server)["half"] == 0


@pytest.mark.parametrize("behind", [event(b"behind"), API, call(b"quick", b"behind"), event(b"behind")[:-1], b"\x16\3"])
@pytest.mark.parametrize("size", [1025, 3000, 6000, 100_000])
def test_nothing_is_taken_behind_an_answer_that_closes(server: Server, size: int, behind: bytes) -> None:
    large = event(b"large", b"x" * size).replace(b"/in/demo", b"/in/small")
    with server.connect(5) as line:
        line.sendall(large + behind)
        assert statuses(all_of(line)) == [413]
    assert not {"large", "behind"} & ids(server)
    assert made(server)["behind"] == 0


@pytest.mark.alone
def test_a_body_that_has_come_whole_is_not_waited_for(server: Server) -> None:
    with server.connect(5) as line:
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (8000, b"x" * 8000)
        line.sendall((POST % b"large").replace(b"/in/demo", b"//in/small") + CHUNKED + chunk)
        begin = time.monotonic()
        assert statuses(all_of(line)) == [413]
        assert time.monotonic() - begin < 0.8


def test_nothing_is_taken_behind_a_request_that_closes(server: Server) -> None:
    with server.connect(5) as line:
        line.sendall(event(b"last").replace(b"Host", b"Connection: close\r\nHost") + event(b"behind the last"))
        assert statuses(all_of(line)) == [202]
    assert "behind the last" not in ids(server)


EARLY = [
    (b"POST /in/unknown HTTP/1.1\r\nHost: localhost\r\n", 404),
    (POST % b"early" + b"Forwarded: for=1.2.3.4\r\n", 401),
    (b"PUT /in/demo HTTP/1.1\r\nHost: localhost\r\n", 405),
    (b"POST /do/quick HTTP/1.1\r\nHost: localhost\r\n", 401),
    (b"POST /api/reruns HTTP/1.1\r\nHost: localhost\r\n", 401),
    (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n", 404),
]


@pytest.mark.parametrize(("head", "status"), EARLY)
@pytest.mark.parametrize("together", [True, False])
def test_a_request_has_one_answer_however_its_body_ends(
    server: Server, head: bytes, status: int, together: bool
) -> None:
    with server.connect(5) as line:
        line.sendall(head + CHUNKED + (b"no chunk\r\n" if together else b""))
        if not together:
            select.select([line], [], [], 2)
            line.sendall(b"no chunk\r\n")
        got = all_of(line)
    assert statuses(got) in ([[400], [status]] if together else [[status]]), got


@pytest.mark.parametrize(("head", "status"), EARLY)
def test_what_comes_behind_a_body_that_nobody_read_is_answered_by_itself(
    server: Server, head: bytes, status: int
) -> None:
    with server.connect(5) as line:
        line.sendall(head + CHUNKED)
        select.select([line], [], [], 2)
        line.sendall(b"2\r\n{}\r\n0\r\n\r\n" + b"no request\r\n\r\n")
        assert statuses(all_of(line)) == [status, 400]


@pytest.mark.parametrize("scheme", [b"http", b"HTTP", b"https"])
def test_a_whole_url_is_taken_for_its_path_and_its_host(server: Server, scheme: bytes) -> None:
    id = b"absolute-" + scheme
    whole = event(id).replace(b"/in/demo", scheme + b"://someone@127.0.0.1:1/in/demo?a=b")
    got = server.raw(whole.replace(b"Host: localhost", b"Host: elsewhere.example"))
    assert parse(got).status == 202, got
    assert id.decode() in ids(server)
    other = event(b"not here").replace(b"/in/demo", scheme + b"://elsewhere.example/in/demo")
    assert parse(server.raw(other)).status == 400
    assert "not here" not in ids(server)
    for target in (b"http://localhost", b"http://localhost?x", b"http://localhost/nowhere"):
        answer = parse(server.raw(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % target))
        assert (answer.status, answer.problem) == (404, "not-found")
    assert parse(server.raw(API.replace(b"/api", b"http://localhost/api"))).status == 200
    done = server.raw(call(b"quick", id).replace(b"/do", b"http://localhost/do"))
    assert parse(done).status == 201


@pytest.mark.parametrize("method", [b"OPTIONS", b"POST", b"GET", b"HEAD", b"PUT"])
def test_the_asterisk_is_nowhere(server: Server, method: bytes) -> None:
    got = server.raw(b"%s * HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % method)
    assert got.startswith(b"HTTP/1.1 404"), got
    assert b"not running" not in got


def test_a_tunnel_is_refused(server: Server) -> None:
    answer = parse(server.raw(b"CONNECT example.com:80 HTTP/1.1\r\nHost: example.com\r\n\r\n"))
    assert (answer.status, answer.problem) == (400, "bad-request")
