"""Connections that never come to their end are ended, and the others are left alone."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest

from perform.calls import CALLERS, MAKING
from process.hasty import Hasty
from process.rig import TOKEN, at_once, until
from process.servers import shared
from process.test_parting import CHUNKED, POST, call, established, event, statuses

pytestmark = pytest.mark.process

RERUN = b"POST /api/reruns HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
ENDLESS = b"Content-Length: 1000\r\n\r\n"
# What is sent at once, what drips behind it, and the answers.
DRIPPING: dict[str, tuple[bytes, bytes, list[int]]] = {
    "nothing": (b"", b"", []),
    "line": (b"POST /", b"s", [408]),
    "head": (POST % b"drip" + b"X-More: ", b"x", [408]),
    "head that stands": (POST % b"drip" + b"X-More: ", b"", [408]),
    "second head": (event(b"first") + b"POST /in/demo HTTP/1.1\r\nX: ", b"x", [202, 408]),
    "head behind a slow call": (call(b"pay?0.5", b"slow") + b"POST /in/demo HTTP/1.1\r\nX: ", b"x", [201, 408]),
    "body": (POST % b"drip" + ENDLESS, b"x", [408]),
    "chunks": (POST % b"drip" + CHUNKED, b"1\r\nx\r\n", [408]),
    "body behind a slow call": (call(b"pay?0.5", b"slower") + POST % b"drip" + ENDLESS, b"x", [201, 408]),
    "body of a call": (call(b"quick", b"drip").replace(b"Length: 2", b"Length: 999"), b"x", [408]),
    "body for the api": (RERUN + ENDLESS, b" ", [408]),
    "body that nobody reads": (b"POST /in/unknown HTTP/1.1\r\nHost: localhost\r\n" + ENDLESS, b"x", [404]),
    "trailer": (POST % b"drip" + CHUNKED + b"0\r\nX: ", b"x", [408]),
    "at rest": (event(b"resting"), b"", [202]),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hasty]:
    folder = tmp_path_factory.mktemp("patience") / "inbox"
    with shared(Hasty(folder, handlers=MAKING, config=CALLERS)) as server:
        yield server


def dripped(server: Hasty, begin: bytes, drop: bytes) -> tuple[list[int], float]:
    """What one gets who sends a drop every fifth of a second, and when the server hangs up."""
    got, since = b"", time.monotonic()
    with server.connect(5) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(begin)
        while time.monotonic() - since < 15:
            if select.select([line], [], [], 0.2)[0]:
                try:
                    chunk = line.recv(65536)
                except ConnectionResetError:
                    chunk = b""
                if not chunk:
                    return statuses(got), time.monotonic() - since
                got += chunk
            elif drop:
                line.sendall(drop)
    return statuses(got), 999.0


def test_who_drips_or_says_nothing_is_hung_up_on(server: Hasty) -> None:
    answers = at_once([lambda each=each: dripped(server, each[0], each[1]) for each in DRIPPING.values()])  # type: ignore[misc]
    found = dict(zip(DRIPPING, answers, strict=True))
    assert {name: got for name, (got, _) in found.items()} == {
        name: wanted for name, (_, _, wanted) in DRIPPING.items()
    }
    assert {name: took for name, (_, took) in found.items() if took > 14} == {}
    assert found["nothing"][1] < 6
    assert found["at rest"][1] > 4
    assert server.rows("select id from events where id = 'drip'") == []
    assert server.log().count("request refused") <= 3


def test_who_takes_nothing_of_what_is_sent_is_hung_up_on(server: Hasty) -> None:
    lines = []
    for text in (
        call(b"large", b"unread"),
        call(b"large", b"unread too").replace(b"Host", b"Connection: close\r\nHost"),
    ):
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect((server.host, server.port))
        line.sendall(text)
        lines.append(line)
    until(lambda: established(server) == 2, 5, "both are connected")
    until(lambda: established(server) == 0, 12, "both are gone")
    for line in lines:
        line.close()


def test_who_reads_slowly_gets_all(server: Hasty) -> None:
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 << 10)
    with line:
        line.connect((server.host, server.port))
        line.settimeout(5)
        line.sendall(call(b"large", b"slowly").replace(b"Host", b"Connection: close\r\nHost"))
        size, since = 0, time.monotonic()
        while chunk := line.recv(16 << 10):
            size += len(chunk)
            if time.monotonic() - since < 4:
                time.sleep(0.005)
        assert size > 8 << 20
