"""What goes over the wire to a URL target, byte by byte, and what a receiver may say there besides a plain answer."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from drain.delivering import Inbox, delivering, posting
from drain.receiver import receiving
from oncebox.drain.http import AT_ONCE
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

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
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
        if end:
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


async def test_a_connection_that_the_receiver_ends_is_not_used_again(tmp_path: Path) -> None:
    speak = saying(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    async with wire(speak) as seen, delivering(tmp_path / "a.db", posting(seen.url, concurrency=1)) as inbox:
        await inbox.receive("evt_1", "evt_2", "evt_3")
        await inbox.idle()
        assert [state for _, state, *_ in await inbox.states()] == ["done"] * 3
        assert seen.connections == 3


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
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
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
