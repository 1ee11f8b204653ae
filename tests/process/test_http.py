"""The edges of HTTP: limits, lengths, odd paths and methods. Every refusal of ours is problem+json."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from process.rig import TOKEN, Client, Server, parse, read_answer, until
from process.servers import shared

pytestmark = pytest.mark.process

LIMIT = 4096
POST = b"POST /in/demo HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: %s\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests here: no request may break it for the next."""
    folder = tmp_path_factory.mktemp("http") / "inbox"
    with shared(Server(folder, server="max_body = '4KiB'", config=SOURCES)) as server:
        yield server


SOURCES = """
[sources.roomy]
id = "header:Idempotency-Key"
unsigned = true
max_body = "10MiB"

[sources.inner]
internal = true
"""


def stored(server: Server, id: str) -> bytes | None:
    """The body of an event as it is in the file; None if there is no such event."""
    rows = server.rows("select payload from raw_events where id = ?", id)
    return rows[0][0] if rows else None


def to_path(path: str, id: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {id}\r\nContent-Length: 0\r\n\r\n".encode()


def closed(line: socket.socket) -> bool:
    """Whether the server hangs up, within two seconds."""
    line.settimeout(2)
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize(("over", "status"), [(-1, 202), (0, 202), (1, 413)])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_the_size_limit_is_exact(server: Server, over: int, status: int, chunked: bool) -> None:
    id, body = f"size-{over}-{chunked}", b"x" * (LIMIT + over)
    if chunked:
        half = len(body) // 2
        text = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:half], body[half:])) + b"0\r\n\r\n"
        got = server.raw(POST % id.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + text)
    else:
        got = server.raw(POST % id.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    answer = parse(got)
    assert answer.status == status
    assert stored(server, id) == (body if status == 202 else None)
    if status == 413:
        assert answer.problem == "too-large"


def test_the_limit_of_a_source_is_its_own(server: Server) -> None:
    assert server.post("roomy", b"x" * (LIMIT + 1), source="roomy").status == 202
    got = server.raw(POST.replace(b"demo", b"roomy") % b"roomier" + b"Content-Length: %d\r\n\r\n" % ((10 << 20) + 1))
    assert parse(got).status == 413


def test_who_sends_all_of_a_body_that_is_too_large_still_hears_why(server: Server) -> None:
    assert server.post("far too large", b"x" * (10 << 20)).status == 413


def test_a_declared_length_over_the_limit_is_refused_before_the_body_comes(server: Server) -> None:
    with server.connect() as line:
        line.sendall(POST % b"declared" + b"Content-Length: 1000000000\r\n\r\n")
        answer = parse(read_answer(line))
        assert (answer.status, answer.problem) == (413, "too-large")
        assert answer.headers["connection"] == "close"
        assert closed(line)


def test_a_chunked_body_over_the_limit_is_refused_while_it_comes(server: Server) -> None:
    with server.connect() as line:
        line.sendall(POST % b"endless" + b"Transfer-Encoding: chunked\r\n\r\n")
        line.sendall(b"%x\r\n%s\r\n" % (LIMIT + 1, b"x" * (LIMIT + 1)))
        answer = parse(read_answer(line))
        assert (answer.status, answer.problem) == (413, "too-large")
        assert closed(line)
    assert stored(server, "endless") is None


def test_a_body_longer_than_declared_is_cut_there_and_its_rest_is_no_event(server: Server) -> None:
    rest = POST % b"within the rest" + b"Content-Length: 0\r\n\r\n"
    got = server.raw(POST % b"longer" + b"Content-Length: 5\r\n\r\n1234567890" + rest)
    assert parse(got).status == 202
    assert stored(server, "longer") == b"12345"
    assert stored(server, "within the rest") is None


def test_a_body_shorter_than_declared_is_no_event(server: Server) -> None:
    with server.connect() as line:
        line.sendall(POST % b"shorter" + b"Content-Length: 50\r\n\r\n1234567890")
        line.shutdown(socket.SHUT_WR)
        assert not read_answer(line).startswith(b"HTTP/1.1 2")
    assert stored(server, "shorter") is None


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length: five\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
    ],
)
def test_lengths_that_can_be_read_in_two_ways_are_refused(server: Server, lengths: bytes) -> None:
    got = server.raw(POST % b"two ways" + lengths + b"\r\n12345", timeout=3)
    assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), got
    assert stored(server, "two ways") is None


@pytest.mark.parametrize("chunk", [b"zz\r\nab\r\n0\r\n\r\n", b"5\r\nabcdefgh\r\n0\r\n\r\n", b"-1\r\n\r\n"])
def test_broken_chunks_are_refused(server: Server, chunk: bytes) -> None:
    got = server.raw(POST % b"chunks" + b"Transfer-Encoding: chunked\r\n\r\n" + chunk, timeout=3)
    assert not got.startswith(b"HTTP/1.1 2")
    assert stored(server, "chunks") is None


def test_who_asks_first_is_told_to_go_on(server: Server) -> None:
    with server.connect() as line:
        line.sendall(POST % b"expecting" + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.sendall(b"12345")
        assert parse(read_answer(line)).status == 202
    assert stored(server, "expecting") == b"12345"


def test_who_asks_first_with_too_much_is_told_so_at_once(server: Server) -> None:
    with server.connect() as line:
        line.sendall(POST % b"too much" + b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n")
        got = read_answer(line)
        assert got.startswith(b"HTTP/1.1 413")
        assert closed(line)


@pytest.mark.parametrize(
    "headers",
    [b"X-Trace: %s\r\n" % (b"t" * 16_000), b"".join(b"X-H%d: %s\r\n" % (n, b"v" * 900) for n in range(16))],
    ids=["one-16kB", "16-of-1kB"],
)
def test_sixteen_kilobytes_of_headers_pass(server: Server, headers: bytes) -> None:
    got = server.raw(POST % b"traced" + headers + b"Content-Length: 2\r\n\r\n{}")
    assert parse(got).status == 202


@pytest.mark.parametrize(
    "headers",
    [
        b"X-Trace: %s\r\n" % (b"t" * 70_000),
        b"".join(b"X-H%d: %s\r\n" % (n, b"v" * 1000) for n in range(100)),
    ],
    ids=["one-70kB", "100-of-1kB"],
)
def test_seventy_kilobytes_of_headers_are_refused_and_logged(server: Server, headers: bytes) -> None:
    got = server.raw(POST % b"header block" + headers + b"Content-Length: 2\r\n\r\n{}")
    answer = parse(got)
    assert answer.status == 431
    assert answer.problem == "too-large"
    assert stored(server, "header block") is None
    until(lambda: "headers" in server.log(), 2, "a log line that names it")


@pytest.mark.parametrize("first", [600, 33_000, 66_000, 120_000])
def test_headers_over_the_limit_are_refused_wherever_they_are_cut(server: Server, first: int) -> None:
    head = POST % b"cut" + b"X-Trace: " + b"t" * 66_000 + b"\r\nContent-Length: 0\r\nX-More: " + b"m" * 60_000
    with server.connect(5) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(head[:first])
        time.sleep(0.1)  # so that they are two pieces on the way
        line.sendall(head[first:] + b"\r\n\r\n")
        assert parse(read_answer(line)).status == 431
    assert stored(server, "cut") is None


def in_pieces(server: Server, text: bytes, cut: int) -> bytes:
    with server.connect(5) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(text[:cut])
        if text[cut:]:
            time.sleep(0.05)  # so that they are two pieces on the way
            line.sendall(text[cut:])
        return read_answer(line)


@pytest.mark.parametrize("cut", [10_000, 110, 20])
def test_what_comes_behind_a_body_in_chunks_names_nothing(server: Server, cut: int) -> None:
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n%s\r\n"
    key = b"Idempotency-Key: within the trailer\r\n"
    answer = parse(in_pieces(server, (POST % b"").replace(b"Idempotency-Key: \r\n", b"") + chunked % key, cut))
    assert (answer.status, answer.problem) == (400, "bad-id")
    id = f"trailer-{cut}".encode()
    more = b"Origin: http://elsewhere.example\r\nX-Event-Type: t\r\n"
    assert parse(in_pieces(server, POST % id + chunked % more, cut)).status == 202
    assert server.rows("select type from events where id = ?", id.decode()) == [(None,)]


@pytest.mark.parametrize("cut", [10_000, 20])
@pytest.mark.parametrize("path", ["/in/demo#part", "/in/demo?a=b#part", "/in/#demo"])
def test_a_fragment_is_no_part_of_a_path(server: Server, path: str, cut: int) -> None:
    status = 404 if path == "/in/#demo" else 202
    assert parse(in_pieces(server, to_path(path, "fragment"), cut)).status == status


def test_endless_trailers_are_not_held_in_memory(server: Server) -> None:
    with server.connect(5) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        line.sendall(POST % b"trailing" + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Endless: ")
        sent = 0
        with pytest.raises(OSError):  # noqa: PT012  # the server hangs up somewhere in here
            for _ in range(200):
                line.sendall(b"x" * 65536)
                sent += 65536
        assert sent < 4 << 20
    assert stored(server, "trailing") is None


def test_endless_headers_are_not_held_in_memory(server: Server) -> None:
    with server.connect(5) as line:
        # What the kernel holds for the sender grows by itself unless told: it is not what the server has taken.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        line.sendall(b"POST /in/demo HTTP/1.1\r\nHost: x\r\nX-Endless: ")
        sent = 0
        with pytest.raises(OSError):  # noqa: PT012  # the server hangs up somewhere in here
            for _ in range(200):
                line.sendall(b"x" * 65536)
                sent += 65536
        assert sent < 4 << 20


def test_a_long_url_is_taken_up_to_the_limit_of_headers(server: Server) -> None:
    assert parse(server.raw(to_path("/in/demo?" + "q" * 20_000, "long"))).status == 202
    answer = parse(server.raw(to_path("/in/demo?" + "q" * 70_000, "longer url")))
    assert (answer.status, answer.problem) == (431, "too-large")


@pytest.mark.parametrize(
    ("path", "slug"),
    [
        ("/", "not-found"),
        ("/nope", "not-found"),
        ("/in", "not-found"),
        ("/in/", "not-found"),
        ("/in/demo/more", "not-found"),
        ("/in/unknown", "unknown-source"),
        ("/in/inner", "unknown-source"),
        ("/in/DEMO", "unknown-source"),
        ("/in/demo%20", "unknown-source"),
        ("/in/demo%00", "unknown-source"),
        ("/in/%2e%2e", "unknown-source"),
        ("/in/d%C3%A9mo", "unknown-source"),
        ("/in/%ff%fe", "unknown-source"),
        ("/in/" + "x" * 3000, "unknown-source"),
        ("/in/../api/events", "not-found"),
        ("/IN/demo", "not-found"),
    ],
)
def test_paths_that_lead_nowhere_are_404_as_problems(server: Server, path: str, slug: str) -> None:
    answer = parse(server.raw(to_path(path, "nowhere")))
    assert (answer.status, answer.problem) == (404, slug), answer
    assert stored(server, "nowhere") is None


@pytest.mark.parametrize("path", ["/in/%64emo", "//in/demo", "/in//demo", "/in/demo?x=%ff", "/in/demo?", "/in/demo/"])
def test_paths_that_mean_the_source_are_taken(server: Server, path: str) -> None:
    assert parse(server.raw(to_path(path, "somewhere"))).status == 202


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/in/demo", "/healthz"])
def test_other_methods_are_405_as_problems(server: Server, method: str, path: str) -> None:
    if (method, path) == ("GET", "/healthz"):
        pytest.skip("that is what it is for")
    with Client(server) as client:
        answer = client.request(method, path)
        if answer.status == 204 and method == "OPTIONS":
            assert answer.headers["allow"]
            return
        assert answer.status == 405
        assert answer.problem == "bad-request"
        allowed = answer.headers["allow"].split(", ")
        assert allowed == sorted(allowed) != []
        assert client.request("GET", "/healthz").status == 200


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
FRAMED = {
    "length": (b"Content-Length: 8\r\n", b'{"a": 1}'),
    "chunked": (b"Transfer-Encoding: chunked\r\n", b'3\r\n{"a\r\n5\r\n": 1}\r\n0\r\n\r\n'),
    "websocket": (b"Content-Length: 8\r\n", b'{"a": 1}'),
}


@pytest.mark.parametrize("framing", FRAMED)
@pytest.mark.parametrize("pieces", [1, 2, 1000])
def test_a_request_that_asks_for_another_protocol_keeps_its_body(server: Server, framing: str, pieces: int) -> None:
    """Java's HttpClient asks for HTTP/2 with each request over plain HTTP."""
    framed, body = FRAMED[framing]
    asks = b"Connection: Upgrade\r\nUpgrade: websocket\r\n" if framing == "websocket" else UPGRADE
    ids = [f"upgrade-{framing}-{pieces}-{n}" for n in (1, 2)]
    text = b"".join(POST % id.encode() + asks + framed + b"\r\n" + body for id in ids)
    text += POST % b"upgrade-last" + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
    size = -(-len(text) // pieces)
    with server.connect(5) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(text), size):
            line.sendall(text[start : start + size])
        got = b""
        while chunk := line.recv(65536):
            got += chunk
    assert got.count(b"HTTP/1.1 202") == 3, got
    assert [stored(server, id) for id in ids] == [b'{"a": 1}'] * 2


@pytest.mark.parametrize("framing", [b"gzip", b"chunked, gzip", b"identity"])
def test_who_asks_for_another_protocol_with_a_body_that_cannot_be_read_is_refused(
    server: Server, framing: bytes
) -> None:
    answer = parse(server.raw(POST % b"upgrade-bad" + UPGRADE + b"Transfer-Encoding: %s\r\n\r\n2\r\n{}" % framing))
    assert (answer.status, answer.problem) == (400, "bad-request")
    assert stored(server, "upgrade-bad") is None
    assert "Traceback" not in server.log()


def test_what_anybody_can_send_fills_no_log(server: Server) -> None:
    before = len(server.log().splitlines())
    for _ in range(50):
        assert server.raw(b"\x16\x03\x01\x02\x00\r\n\r\n", timeout=3).startswith(b"HTTP/1.1 400")
        assert parse(server.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + UPGRADE + b"\r\n")).status == 200
    assert server.get("/healthz").status == 200
    assert len(server.log().splitlines()) - before <= 2, server.log()


def test_who_hangs_up_in_a_body_for_the_api_is_no_fault_of_the_server(server: Server) -> None:
    before = server.log()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as line:
            asked = f"Authorization: Bearer {TOKEN}\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n"
            line.sendall(b"POST /api/reruns HTTP/1.1\r\nHost: localhost\r\n" + asked.encode() + b'{"source": ')
            assert line.recv(64).startswith(b"HTTP/1.1 100"), "the body is being read"
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert server.get("/api/stats").status == 200
    assert server.log() == before


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_answers_head(server: Server, path: str) -> None:
    got = server.raw(b"HEAD %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path.encode(), timeout=2)
    head, _, rest = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), got
    assert rest == b""


def test_head_gets_no_body_and_spoils_nothing(server: Server) -> None:
    got = server.raw(b"HEAD /in/demo HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", timeout=2)
    assert got.startswith(b"HTTP/1.1 405")
    head, _, rest = got.partition(b"\r\n\r\n")
    if not rest:
        return
    assert rest.startswith(b"HTTP/1.1 200"), head


@pytest.mark.parametrize(
    "line", [b"GARBAGE /in/demo HTTP/1.1", b"POST", b"\x16\x03\x01\x02\x00", b"POST /in/demo HTTP/9.9"]
)
def test_garbage_is_400_or_405(server: Server, line: bytes) -> None:
    got = server.raw(line + b"\r\nHost: x\r\n\r\n", timeout=3)
    assert got.startswith((b"HTTP/1.1 400", b"HTTP/1.1 405", b"HTTP/1.1 505")), got
    assert server.get("/healthz").status == 200


def test_requests_behind_one_another_on_one_line_are_answered_in_order(server: Server) -> None:
    text = b"".join(POST % b"pipe-%d" % n + b"Content-Length: 2\r\n\r\n{}" for n in range(10))
    last = POST % b"pipe-last" + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}"
    got = b""
    with server.connect(5) as line:
        line.sendall(text + last)
        while chunk := line.recv(65536):
            got += chunk
    ids = [json.loads(part.partition(b"\r\n\r\n")[2])["id"] for part in got.split(b"HTTP/1.1 202")[1:]]
    assert ids == [*(f"pipe-{n}" for n in range(10)), "pipe-last"]


def test_the_old_protocol_is_answered_and_closed(server: Server) -> None:
    with server.connect() as line:
        line.sendall(b"POST /in/demo HTTP/1.0\r\nIdempotency-Key: old\r\nContent-Length: 2\r\n\r\n{}")
        assert b" 202 " in read_answer(line)
        assert closed(line)


def test_bodies_that_come_byte_by_byte_are_whole(server: Server) -> None:
    with server.connect() as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in POST % b"dribble" + b"Content-Length: 20\r\n\r\n" + b"0123456789" * 2:
            line.sendall(bytes([byte]))
        assert parse(read_answer(line)).status == 202
    assert stored(server, "dribble") == b"0123456789" * 2


@pytest.mark.alone
def test_a_receipt_that_nobody_reads_holds_nobody_up(server: Server) -> None:
    lines = [server.connect() for _ in range(20)]
    for number, line in enumerate(lines):
        line.sendall(b"".join(POST % b"unread-%d-%d" % (number, n) + b"Content-Length: 0\r\n\r\n" for n in range(200)))
    begin = time.monotonic()
    assert server.post("meanwhile").status == 202
    assert time.monotonic() - begin < 2
    for line in lines:
        line.close()
