"""What goes over the wire to a URL target, byte by byte, and what a receiver may say there besides a plain answer."""

from __future__ import annotations

import asyncio
import socket
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp.connector import AddrInfoType

from drain.delivering import Inbox, delivering, posting, wall
from drain.receiver import receiving
from oncebox.drain import connections
from oncebox.drain.connections import HEAD_BYTES, Connections
from oncebox.drain.exchange import AT_ONCE, UNREAD
from oncebox.drain.retry import RetryPolicy

pytestmark = pytest.mark.anyio
ONCE = RetryPolicy(attempts=1, base=0.005, ceiling=0.01)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Speak = Callable[[asyncio.StreamWriter, int], Awaitable[None]]


class Wire:
    """Every request as it came, with the number of its connection."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, bytes]] = []
        self.connections = 0
        self.port = 0
        self.server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def wire(speak: Speak) -> AsyncIterator[Wire]:
    """A receiver that reads a request and then does what `speak` does with the writer and the request's number."""
    seen = Wire()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        number = seen.connections
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                seen.requests.append((number, head + await reader.readexactly(length)))
                await speak(writer, len(seen.requests))
                await writer.drain()
        writer.close()

    seen.server = server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    seen.port = server.sockets[0].getsockname()[1]
    try:
        yield seen
    finally:
        server.close()


def saying(*parts: bytes, end: bool = False) -> Speak:
    """Says these, one after the other, to every request; then it may end the connection."""

    async def speak(writer: asyncio.StreamWriter, _number: int) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            if part is not parts[-1]:
                await asyncio.sleep(0.01)  # so that they come one by one
        if end:
            writer.close()

    return speak


def one_by_one(*said: bytes) -> Speak:
    """Says the first to the first request and so on; nothing ends the connection in place of an answer."""

    async def speak(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(said[number - 1])
        if not said[number - 1].endswith(b"\n\r\nok"):
            await writer.drain()
            writer.close()

    return speak


async def outcome(inbox: Inbox, id: str) -> tuple[object, ...]:
    await inbox.idle()
    (row,) = await inbox.rows(
        "select d.state, d.outcome, d.error from deliveries d join events e on e.seq = d.seq where e.id = ?", id
    )
    return tuple(row)


def lines(request: bytes) -> list[str]:
    return request.partition(b"\r\n\r\n")[0].decode().split("\r\n")


async def test_the_head_says_each_thing_once(tmp_path: Path) -> None:
    async with wire(saying(OK)) as seen:
        url = f"http://user:pa%3Ass@127.0.0.1:{seen.port}/a%20b/c?d=%C3%A9&e=1#f"
        async with delivering(tmp_path / "a.db", posting(url)) as inbox:
            await inbox.receive("evt_1", body=b'{"n":1}')
            await inbox.idle()
    ((_, request),) = seen.requests
    first, *fields = lines(request)
    names = [field.partition(":")[0].lower() for field in fields]
    assert first == "POST /a%20b/c?d=%C3%A9&e=1 HTTP/1.1"
    assert sorted(names) == sorted(set(names))
    assert f"Host: 127.0.0.1:{seen.port}" in fields
    assert f"Authorization: Basic {b64encode(b'user:pa:ss').decode()}" in fields
    assert "Content-Length: 7" in fields
    assert "transfer-encoding" not in names
    assert request.endswith(b'\r\n\r\n{"n":1}')


async def test_short_and_long_bodies_leave_with_the_same_headers(tmp_path: Path) -> None:
    async with wire(saying(OK)) as seen, delivering(tmp_path / "a.db", posting(seen.url)) as inbox:
        await inbox.receive("evt_1", body=b"x")
        await inbox.idle()
        await inbox.receive("evt_1", source="other", body=b"x" * (AT_ONCE + 1))
        await inbox.idle()
    short, long = ({line.partition(":")[0].lower() for line in lines(request)[1:]} for _, request in seen.requests)
    assert short == long


async def test_an_empty_body_is_posted_as_one(tmp_path: Path) -> None:
    async with wire(saying(OK)) as seen, delivering(tmp_path / "a.db", posting(seen.url)) as inbox:
        await inbox.receive("evt_1", body=b"")
        assert (await outcome(inbox, "evt_1"))[0] == "done"
    assert "Content-Length: 0" in lines(seen.requests[0][1])


async def test_interim_answers_are_passed_over(tmp_path: Path) -> None:
    speak = saying(
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n",
    )
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        state, _, error = await outcome(inbox, "evt_1")
        assert (state, error) == ("dead", "answered 500 Internal Server Error")


@pytest.mark.parametrize("size", [2, AT_ONCE + 1])
async def test_what_a_receiver_says_unasked_is_no_answer_to_what_comes_next(tmp_path: Path, size: int) -> None:
    async def speak(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            writer.write(OK)
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(OK)
        else:
            writer.write(b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n")

    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        assert (await outcome(inbox, "evt_1"))[0] == "done"
        await asyncio.sleep(0.1)
        await inbox.receive("evt_2", body=b"x" * size)
        assert (await outcome(inbox, "evt_2"))[0] == "dead"
        assert [number for number, _ in seen.requests] == [1, 2]


@pytest.mark.parametrize(
    "said",
    [
        [b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", b"OK"],
        [b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nOK\r\n0\r\n\r\n"],
        [b"HTTP/1.1 204 No Content\r\n\r\n", b"OK"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK", b"and more"],
    ],
)
async def test_what_is_left_over_of_an_answer_spoils_no_other(tmp_path: Path, said: list[bytes]) -> None:
    async with (
        wire(saying(*said)) as seen,
        delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE, concurrency=1)) as inbox,
    ):
        await inbox.receive(*[f"evt_{n}" for n in range(20)])
        await inbox.idle()
        assert {row[1:3] for row in await inbox.states()} == {("done", "ok")}
        assert len(seen.requests) == 20


async def test_a_204_that_says_it_is_empty_keeps_its_connection(tmp_path: Path) -> None:
    said = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
    async with (
        wire(saying(said)) as seen,
        delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE, concurrency=1)) as inbox,
    ):
        await inbox.receive(*[f"evt_{n}" for n in range(20)])
        await inbox.idle()
        assert seen.connections == 1


async def test_a_connection_that_the_receiver_ends_is_not_used_again(tmp_path: Path) -> None:
    speak = saying(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, concurrency=1)) as inbox:
        await inbox.receive("evt_1", "evt_2", "evt_3")
        await inbox.idle()
        assert [state for _, state, *_ in await inbox.states()] == ["done"] * 3
        assert seen.connections == 3


async def test_a_connection_at_rest_ends_before_a_common_server_would_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEPT_ALIVE", 0.2)
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(OK)
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, delivering(tmp_path / "a.db", posting(url)) as inbox:
        began = asyncio.get_running_loop().time()
        await inbox.receive("evt_1", body=b"")
        async with asyncio.timeout(5):
            await gone.wait()
        assert asyncio.get_running_loop().time() - began >= 0.2
        await inbox.receive("evt_2", body=b"")
        await inbox.idle()
        assert [state for _, state, *_ in await inbox.states()] == ["done"] * 2


async def test_of_many_connections_those_that_are_not_needed_any_more_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEPT_ALIVE", 0.3)
    slow = asyncio.Event()
    open_now: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                if len(open_now) == 4:
                    slow.set()
                await slow.wait()
                writer.write(OK)
        open_now.discard(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, delivering(tmp_path / "a.db", posting(url, concurrency=4)) as inbox:
        await inbox.receive(*(f"e{n}" for n in range(4)), body=b"")
        await inbox.idle()
        assert len(open_now) == 4
        async with asyncio.timeout(10):
            n = 4
            while len(open_now) > 1:
                await inbox.receive(f"e{n}", body=b"")
                await inbox.idle()
                n += 1
        assert len(open_now) == 1


async def test_an_answer_without_a_length_ends_with_its_connection(tmp_path: Path) -> None:
    speak = saying(b"HTTP/1.0 400 No\r\n\r\nnot this one", end=True)
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        state, _, error = await outcome(inbox, "evt_1")
        assert (state, error) == ("dead", "answered 400 Bad Request\n\nnot this one")


@pytest.mark.parametrize(
    "said",
    [
        b"220 mail.example.com ESMTP\r\n",
        b"ICY 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        b"\0" * 64,
        b"HTTP/1.1 99 a\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_an_error_of_the_receiver(tmp_path: Path, said: bytes) -> None:
    speak = saying(said, end=True)
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        state, kind, error = await outcome(inbox, "evt_1")
        assert (state, kind) == ("dead", "error")
        assert str(error).startswith("the connection broke before an answer came: ")


async def test_a_head_that_drips_in_ends_with_the_time_of_the_try(tmp_path: Path) -> None:
    async def speak(writer: asyncio.StreamWriter, _number: int) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 40:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE, timeout=0.3)) as inbox:
        await inbox.receive("evt_1")
        began = asyncio.get_running_loop().time()
        state, kind, _ = await outcome(inbox, "evt_1")
        assert (state, kind) == ("dead", "timeout")
        assert asyncio.get_running_loop().time() - began < 2


async def test_a_switch_of_protocols_is_no_success(tmp_path: Path) -> None:
    speak = saying(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nrest")
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        assert (await outcome(inbox, "evt_1"))[0] == "dead"


async def test_headers_that_are_not_ascii_leave_as_the_bytes_that_came(tmp_path: Path) -> None:
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        await inbox.receive("é✓", type="größe")
        await inbox.idle()
        ((request, _),) = receiver.log
        assert request.headers["oncebox-id"].encode("latin-1").decode() == "é✓"
        assert request.headers["oncebox-type"].encode("latin-1").decode() == "größe"


@pytest.mark.parametrize("size", [2, AT_ONCE + 1])
async def test_a_receiver_that_speaks_first_gets_one_connection_a_try(tmp_path: Path, size: int) -> None:
    connections = 0

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(b"220 mail.example.com ESMTP\r\n")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    twice = RetryPolicy(attempts=2, base=0.005, ceiling=0.01)
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with delivering(tmp_path / "a.db", posting(url, retry=twice)) as inbox:
        await inbox.receive("evt_1", body=b"x" * size)
        assert (await outcome(inbox, "evt_1"))[0] == "dead"
    server.close()
    assert connections == 2


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [
        [b"HTTP/1.1 204 No Content\r\n\r\nOK"],
        [b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOKAY\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"OKAY\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nOK"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nOK"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nOK\r\n0\r\n\r\n"],
        [CHUNKED + b"ZZZ\r\nhello"],
        [CHUNKED, b"ZZZ\r\nhello"],
        [b"HTTP/1.1 200 OK\r\nX Y: 1\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nX Y: 1\r\n", b"Content-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nX-A: a\0b\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\nOK"],
        [b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\nOK"],
        [b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * (2 * HEAD_BYTES) + b"\r\nContent-Length: 0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\n", *[b"X-Some: more\r\n" * 2_000] * 10],
    ],
    ids=lambda said: repr(said[0][8:50]),
)
async def test_who_has_said_2xx_is_believed_whatever_else_is_wrong_with_the_answer(
    tmp_path: Path, said: list[bytes]
) -> None:
    async with wire(saying(*said)) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        began = asyncio.get_running_loop().time()
        await inbox.receive("evt_1")
        assert (await outcome(inbox, "evt_1"))[:2] == ("done", "ok")
        await inbox.receive("evt_2")
        assert (await outcome(inbox, "evt_2"))[:2] == ("done", "ok")
        assert [number for number, _ in seen.requests] == [1, 2]
        assert asyncio.get_running_loop().time() - began < 0.9  # nobody waits for the rest of what cannot be read


@pytest.mark.parametrize("fields", [b"X-Big: " + b"a" * 10_000 + b"\r\n", b"X-Many: a\r\n" * 200])
async def test_a_large_head_is_no_fault(tmp_path: Path, fields: bytes) -> None:
    async with (
        wire(saying(b"HTTP/1.1 200 OK\r\n" + fields + b"Content-Length: 0\r\n\r\n")) as seen,
        delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE, concurrency=1)) as inbox,
    ):
        await inbox.receive("evt_1", "evt_2")
        await inbox.idle()
        assert [state for _, state, *_ in await inbox.states()] == ["done"] * 2
        assert seen.connections == 1


async def test_a_faulty_answer_is_judged_by_all_that_it_says(tmp_path: Path) -> None:
    async def speak(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            writer.write(b"HTTP/1.1 410 Gone\r\nContent-Length: 2\r\n\r\nno such hook")
        else:
            writer.write(b"HTTP/1.1 429 X\r\nretry-after: 120\r\nX Y: 1\r\nContent-Length: 0\r\n\r\n")

    retry = RetryPolicy(base=0.005, ceiling=0.01)
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=retry)) as inbox:
        await inbox.receive("evt_1")
        assert await outcome(inbox, "evt_1") == ("dead", "refused", "answered 410 Gone\n\nno such hook")
        await inbox.receive("evt_2")
        await inbox.drain.idle()
        ((due,),) = await inbox.rows("select due from deliveries where state = 'pending'")
        assert 115e6 < due - wall() <= 120e6


async def test_what_came_of_a_text_before_its_fault_is_kept(tmp_path: Path) -> None:
    speak = saying(CHUNKED.replace(b"200 OK", b"500 No") + b"5\r\nhello\r\n", b"ZZZ\r\n")
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        assert (await outcome(inbox, "evt_1"))[2] == "answered 500 Internal Server Error\n\nhello"


@pytest.mark.parametrize("size", [2, AT_ONCE + 1])
async def test_a_connection_that_was_closed_while_idle_costs_no_attempt(tmp_path: Path, size: int) -> None:
    async with (
        wire(one_by_one(OK, b"", OK)) as seen,
        delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox,
    ):
        await inbox.receive("evt_1")
        await inbox.idle()
        await inbox.receive("evt_2", body=b"x" * size)
        assert (await outcome(inbox, "evt_2"))[:2] == ("done", "ok")
        assert await inbox.rows("select sum(attempts), sum(failures) from deliveries") == [(2, 0)]
        assert [number for number, _ in seen.requests] == [1, 1, 2]
        assert seen.requests[1][1] == seen.requests[2][1]


async def test_who_has_waited_too_long_for_a_request_that_was_under_way_gets_it_again(tmp_path: Path) -> None:
    late = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with (
        wire(one_by_one(OK, late, OK)) as seen,
        delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox,
    ):
        await inbox.receive("evt_1")
        await inbox.idle()
        await inbox.receive("evt_2")
        assert (await outcome(inbox, "evt_2"))[:2] == ("done", "ok")
        assert [number for number, _ in seen.requests] == [1, 1, 2]


async def test_a_new_connection_that_ends_with_408_is_a_failed_attempt(tmp_path: Path) -> None:
    late = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with wire(one_by_one(late)) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        assert (await outcome(inbox, "evt_1"))[:2] == ("dead", "error")
        assert len(seen.requests) == 1


async def test_it_is_sent_once_more_and_never_over_another_idle_connection(tmp_path: Path) -> None:
    both = asyncio.Event()

    async def speak(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 2:
            both.set()
        await both.wait()
        if number <= 2:
            writer.write(OK)
        else:
            writer.close()

    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1", "evt_2")
        await inbox.idle()
        await inbox.receive("evt_3")
        state, kind, error = await outcome(inbox, "evt_3")
        assert (state, kind) == ("dead", "error")
        assert str(error).startswith("the connection broke before an answer came")
        connections = [number for number, _ in seen.requests]
        assert sorted(connections[:2]) == [1, 2]
        assert connections[3:] == [3]


@pytest.mark.parametrize("said", [[b""], [OK, b"HTTP/1.1 2"]], ids=["a new one", "one that has begun to answer"])
async def test_a_connection_that_breaks_otherwise_is_a_failed_attempt(tmp_path: Path, said: list[bytes]) -> None:
    async with (
        wire(one_by_one(*said)) as seen,
        delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox,
    ):
        ends = []
        for number in range(len(said)):
            await inbox.receive(f"evt_{number}")
            ends.append((await outcome(inbox, f"evt_{number}"))[:2])
        assert ends == [("done", "ok")] * (len(said) - 1) + [("dead", "error")]
        assert len(seen.requests) == len(said)


async def test_who_is_gone_after_it_broke_the_connection_may_have_fallen_over_the_event(tmp_path: Path) -> None:
    async def speak(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            writer.write(OK)
        else:
            assert seen.server is not None
            seen.server.close()
            writer.close()

    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE)) as inbox:
        await inbox.receive("evt_1")
        await inbox.idle()
        await inbox.receive("evt_2")
        assert (await outcome(inbox, "evt_2"))[:2] == ("dead", "error")


async def test_a_used_connection_that_only_keeps_silent_is_a_timeout(tmp_path: Path) -> None:
    async def speak(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            writer.write(OK)
        else:
            await asyncio.sleep(60)

    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, retry=ONCE, timeout=0.3)) as inbox:
        await inbox.receive("evt_1")
        await inbox.idle()
        await inbox.receive("evt_2")
        assert (await outcome(inbox, "evt_2"))[:2] == ("dead", "timeout")
        assert len(seen.requests) == 2


class Unread:
    """A receiver that reads no more than a head and says what it is told; the rest it reads when it is told to."""

    def __init__(self, said: bytes) -> None:
        self.said = said
        self.reads = asyncio.Event()
        self.connections = self.ended = self.found = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.said)
            await writer.drain()
            await self.reads.wait()
            while some := await reader.read(1 << 16):
                self.found += len(some)
        self.ended += 1
        writer.close()


@asynccontextmanager
async def unread(said: bytes) -> AsyncIterator[Unread]:
    receiver = Unread(said)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        receiver.port = listening.getsockname()[1]
        server = await asyncio.start_server(receiver.serve, sock=listening, limit=1024)
        try:
            yield receiver
        finally:
            receiver.reads.set()
            server.close()


def narrow(inbox: Inbox) -> None:
    """What is sent stays with the sender until it is read, as it does over a long way."""

    def make(address: AddrInfoType) -> socket.socket:
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return made

    assert isinstance(inbox.client.connector, Connections)
    inbox.client.connector._socket_factory = make


NOTHING = b"Content-Length: 0\r\n\r\n"


@pytest.mark.parametrize("size", [AT_ONCE, 8 * AT_ONCE])
async def test_a_body_that_is_not_sent_yet_when_it_is_answered_holds_up_no_other(tmp_path: Path, size: int) -> None:
    async with unread(b"HTTP/1.1 200 OK\r\n" + NOTHING) as receiver:
        make = posting(f"http://127.0.0.1:{receiver.port}/", retry=ONCE, timeout=2.0, concurrency=1)
        async with delivering(tmp_path / "a.db", make) as inbox:
            narrow(inbox)
            await inbox.receive("big", body=b"x" * size)
            await inbox.receive("small")
            await inbox.idle()
            assert [state for _, state, *_ in await inbox.states()] == ["done"] * 2
            assert receiver.connections == 2


@pytest.mark.parametrize(
    ("size", "said"),
    [(UNREAD + 1, b"HTTP/1.1 413 No\r\n" + NOTHING), (AT_ONCE + 1, b"HTTP/1.1 200 OK\r\n" + NOTHING)],
)
async def test_a_body_that_may_lie_unread_holds_up_no_other(tmp_path: Path, size: int, said: bytes) -> None:
    async with unread(said) as receiver:
        make = posting(f"http://127.0.0.1:{receiver.port}/", retry=ONCE, timeout=2.0, concurrency=1)
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("big", body=b"x" * size)
            await inbox.receive("small")
            await inbox.idle()
            assert {kind for _, _, kind, *_ in await inbox.states()} <= {"ok", "error"}
            assert receiver.connections == 2


@pytest.mark.parametrize("size", [AT_ONCE, 8 * AT_ONCE])
async def test_what_nobody_reads_is_not_held_for_ever(tmp_path: Path, size: int) -> None:
    async with unread(b"") as receiver:
        url = f"http://127.0.0.1:{receiver.port}/"
        async with delivering(tmp_path / "a.db", posting(url, retry=ONCE, timeout=0.05)) as inbox:
            narrow(inbox)
            await inbox.receive("big", body=b"x" * size)
            assert (await outcome(inbox, "big"))[:2] == ("dead", "timeout")
            receiver.reads.set()
            await inbox.until(lambda: receiver.ended == 1, 5)
            assert receiver.found < size / 2
