"""Targets that are no path, where a server that knows nothing of us reads the requests."""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from process.rig import Answer, parse, read_answer
from process.test_plugin import Host

pytestmark = pytest.mark.process

ROOTED = 'app = Litestar(plugins=[OnceboxPlugin("litestar.toml", path="/")], openapi_config=None)'
BODY = b'{"id": "%s", "type": "paid", "order": 1}'


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, bool], Host]]:
    """Starts the example under a parser of uvicorn's, or an application that is all inbox."""
    made: list[Host] = []

    def started(parser: str, rooted: bool) -> Host:
        host = Host(tmp_path / "shop")
        made.append(host)
        if rooted:
            head = "from litestar import Litestar\nfrom oncebox import OnceboxPlugin\n"
            (host.folder / "app.py").write_text(f"{head}{ROOTED}\n")
        return host.start("--http", parser, "--loop", "asyncio")

    yield started
    for host in made:
        if host.process is not None and host.alive():
            host.process.kill()
            host.process.wait(10)


def asked(host: Host, method: bytes, target: bytes, id: bytes = b"") -> Answer:
    body = BODY % id if id else b""
    signature = hmac.new(b"secret", body, hashlib.sha256).hexdigest().encode()
    with socket.create_connection((host.host, host.port), 5) as line:
        line.sendall(
            b"%s %s HTTP/1.1\r\nHost: %s:%d\r\nX-Signature: %s\r\nContent-Length: %d\r\n\r\n%s"
            % (method, target, host.host.encode(), host.port, signature, len(body), body)
        )
        return parse(read_answer(line))


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_a_whole_url_is_taken_for_its_path(start: Callable[[str, bool], Host], parser: str) -> None:
    host = start(parser, False)
    here = b"http://%s:%d" % (host.host.encode(), host.port)
    first = asked(host, b"POST", here + b"/inbox/in/bank", b"p-1")
    assert first.status == 202, first
    assert asked(host, b"POST", b"/inbox/in/bank?x=1", b"p-1").body == first.body
    assert asked(host, b"GET", here + b"/inbox/readyz?x").status == 200
    assert asked(host, b"GET", here + b"/inbox/nowhere").problem == "not-found"
    assert asked(host, b"OPTIONS", b"*").headers["content-type"] != "application/problem+json"
    host.stop()
    assert "Traceback" not in host.log()


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_the_asterisk_is_nowhere_in_an_application_that_is_all_inbox(
    start: Callable[[str, bool], Host], parser: str
) -> None:
    host = start(parser, True)
    for method in (b"OPTIONS", b"POST", b"GET"):
        answer = asked(host, method, b"*")
        assert (answer.status, answer.problem) == (404, "not-found"), answer
    assert asked(host, b"POST", b"http://127.0.0.1/in/bank", b"p-1").status == 202
    host.stop()
    assert "Traceback" not in host.log()
