"""Whole requests are answered without a task, and everything else the ordinary way."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from oncebox.wire import Protocol

pytestmark = pytest.mark.anyio


class App:
    """Answers by either way with the way's name and the body; `/later` waits for `release`, `/fault` raises."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def takes(self, method: bytes, url: bytes) -> bool:
        return method == b"POST" and url.startswith(b"/in/")

    def direct(self, url: bytes, _headers: Any, body: bytes, _scheme: str, _client: Any, reply: Any) -> None:
        if url == b"/in/fault":
            raise RuntimeError("a fault of ours")
        if url == b"/in/empty":
            reply(204, "text/plain", b"never sent")
        elif url == b"/in/odd":
            reply(202, "text/\u2603", b"cannot be sent")
        elif url == b"/in/last":
            reply(413, "text/plain", b"direct", (("connection", "close"), ("retry-after", "5")))
        elif url == b"/in/later":
            self.waiting.append(lambda: reply(202, "text/plain", b"direct " + body))
        else:
            reply(202, "text/plain", b"direct " + body)

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        answer = b"task " + body
        head = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    def release(self) -> None:
        """Give the answers that wait, in the order of their requests."""
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer()

    async def asked(self, count: int = 1) -> None:
        """Wait until so many answers wait."""
        async with asyncio.timeout(5):
            while len(self.waiting) < count:  # noqa: ASYNC110  # the server tells nobody
                await asyncio.sleep(0.001)


class Server(uvicorn.Server):
    """uvicorn without its signals."""

    def install_signal_handlers(self) -> None:
        """None: the tests' own stay."""


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def reset(self) -> None:
        """Hang up so that the server is told that nobody listens any more."""
        line = self.writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers, body."""
        async with asyncio.timeout(5):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(first.split()[1]), headers, body

    async def ended(self) -> bool:
        """Whether the server hangs up."""
        async with asyncio.timeout(5):
            return await self.reader.read(1) == b""


CHUNKED = b"POST %s HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


def posted(path: str, body: bytes, *more: str, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: here", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Running:
    """A server on loopback and the app that it serves."""

    def __init__(self, app: App, server: Server, port: int) -> None:
        self.app, self.server, self.port = app, server, port
        self._peers: list[Peer] = []

    async def connect(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self._peers.append(peer)
        return peer

    def hang_up(self) -> None:
        for peer in self._peers:
            peer.writer.transport.abort()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Running]:
    app = App()
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        **settings,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(config)
        running = Running(app, server, listener.getsockname()[1])
        task = asyncio.create_task(server._serve(sockets=[listener]))  # `serve` is this and signals
        try:
            yield running
        finally:
            running.hang_up()
            server.should_exit = True
            await task


async def test_a_request_that_comes_whole_is_answered_directly() -> None:
    async with serving() as running:
        peer = await running.connect()
        for body in (b"one", b"", b"three"):
            peer.send(posted("/in/demo", body))
            status, headers, answered = await peer.answer()
            assert (status, answered) == (202, b"direct " + body)
            assert headers["date"].endswith("GMT")
        assert running.server.server_state.total_requests == 3


async def test_a_body_in_pieces_is_read_by_a_task_from_its_first_byte() -> None:
    async with serving() as running:
        peer = await running.connect()
        whole = posted("/in/demo", b"first and second")
        peer.send(whole[:-10])
        await peer.writer.drain()
        await asyncio.sleep(0.05)  # so that they are two pieces on the way
        peer.send(whole[-10:])
        status, _, body = await peer.answer()
        assert (status, body) == (200, b"task first and second")


@pytest.mark.parametrize(
    "request_",
    [
        posted("/in/demo", b"x", version="1.0"),
        posted("/in/demo", b"x", "Connection: close"),
        posted("/in/demo", b"x", "Expect: 100-continue"),
        posted("/in/demo", b"x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
        posted("/api/x", b"x"),
        b"PUT /in/demo HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\nx",
    ],
)
async def test_requests_with_something_special_go_the_ordinary_way(request_: bytes) -> None:
    async with serving() as running:
        peer = await running.connect()
        peer.send(request_)
        status, _, body = await peer.answer()
        if status == 100:
            status, _, body = await peer.answer()
        assert (status, body) == (200, b"task x")


async def test_requests_in_one_piece_are_answered_in_their_order() -> None:
    async with serving() as running:
        peer = await running.connect()
        peer.send(posted("/in/later", b"1") + posted("/in/demo", b"2") + posted("/api/x", b"3"))
        await running.app.asked()
        running.app.release()
        assert [(await peer.answer())[2] for _ in range(3)] == [b"direct 1", b"task 2", b"task 3"]


async def test_a_fault_is_a_500_and_the_connection_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running:
        peer = await running.connect()
        peer.send(posted("/in/fault", b"x"))
        status, headers, body = await peer.answer()
        assert (status, headers["content-type"]) == (500, "application/problem+json")
        assert b"a fault of ours" not in body
        peer.send(posted("/in/demo", b"y"))
        assert (await peer.answer())[2] == b"direct y"
    assert "a fault of ours" in caplog.text


async def test_an_answer_that_cannot_be_sent_is_a_500() -> None:
    async with serving() as running:
        peer = await running.connect()
        peer.send(posted("/in/odd", b"x"))
        assert (await peer.answer())[0] == 500


async def test_an_answer_without_content_has_neither_length_nor_body() -> None:
    async with serving() as running:
        peer = await running.connect()
        peer.send(posted("/in/empty", b"x"))
        status, headers, body = await peer.answer()
        assert (status, "content-length" in headers, body) == (204, False, b"")
        peer.send(posted("/in/demo", b"y"))
        assert (await peer.answer())[2] == b"direct y"


async def test_an_answer_may_be_the_last_of_its_connection() -> None:
    async with serving() as running:
        peer = await running.connect()
        peer.send(posted("/in/last", b"x"))
        status, headers, _ = await peer.answer()
        assert (status, headers["connection"], headers["retry-after"]) == (413, "close", "5")
        assert await peer.ended()


async def test_who_has_gone_is_not_answered_and_leaves_nothing_behind() -> None:
    async with serving() as running:
        for _ in range(20):
            peer = await running.connect()
            peer.send(posted("/in/later", b"x"))
            await running.app.asked()
            peer.reset()
            async with asyncio.timeout(5):
                while running.server.server_state.connections:  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0.001)
            running.app.release()
        gc.collect()
        assert not [thing for thing in gc.get_objects() if type(thing) is Protocol]


async def test_what_is_waiting_for_its_answer_at_a_stop_gets_it() -> None:
    async with serving() as running:
        peer = await running.connect()
        peer.send(posted("/in/later", b"x"))
        await running.app.asked()
        running.server.should_exit = True
        await asyncio.sleep(0.3)  # the server notices within a tenth of a second
        running.app.release()
        status, headers, body = await peer.answer()
        assert (status, headers["connection"], body) == (202, "close", b"direct x")
        assert await peer.ended()


async def test_a_connection_at_rest_is_closed_and_one_in_use_is_not() -> None:
    async with serving(timeout_keep_alive=1) as running:
        used, resting = await running.connect(), await running.connect()
        resting.send(posted("/in/demo", b"x"))
        await resting.answer()
        for _ in range(4):
            used.send(posted("/in/demo", b"x"))
            assert (await used.answer())[0] == 202
            await asyncio.sleep(0.4)
        assert await resting.ended()
        used.send(posted("/in/later", b"x"))
        await asyncio.sleep(1.3)  # a request that takes longer than a rest is none
        running.app.release()
        assert (await used.answer())[2] == b"direct x"
        assert await used.ended()


async def test_what_cannot_be_read_takes_no_answer_from_the_requests_before_it() -> None:
    async with serving() as running:
        for between in (b"", posted("/api/x", b"2"), posted("/api/x", b"2") + posted("/in/demo", b"3")):
            peer = await running.connect()
            peer.send(posted("/in/later", b"1") + between + CHUNKED % b"/in/demo" + b"no chunk\r\n")
            await running.app.asked()
            running.app.release()
            expected = [b"direct 1", b"task 2", b"task 3"][: 1 + between.count(b"POST")]
            assert [(await peer.answer())[2] for _ in expected] == expected
            status, headers, _ = await peer.answer()
            assert (status, headers["connection"]) == (400, "close")
            assert await peer.ended()


async def test_what_cannot_be_read_alone_is_refused_at_once() -> None:
    async with serving() as running:
        for path in (b"/in/demo", b"/api/x"):
            peer = await running.connect()
            peer.send(CHUNKED % path + b"no chunk\r\n")
            status, headers, _ = await peer.answer()
            assert (status, headers["connection"]) == (400, "close")
            assert await peer.ended()


@pytest.mark.parametrize("first", [posted("/in/later", b"first"), posted("/in/demo", b"x")], ids=["waits", "does-not"])
async def test_many_requests_behind_one_another_stay_unparsed_until_it_is_their_turn(first: bytes) -> None:
    count = 20_000
    async with serving() as running:
        peer, most = await running.connect(), 0
        peer.send(first + b"GET / HTTP/1.1\r\n\r\n" * count + posted("/in/demo", b"last"))
        if b"later" in first:
            await running.app.asked()
            await asyncio.sleep(0.1)  # so that the server has what the connection holds
        running.app.release()
        await peer.answer()
        (protocol,) = running.server.server_state.connections
        for _ in range(count):
            assert (await peer.answer())[2] == b"task "
            most = max(most, len(protocol.pipeline))  # type: ignore[union-attr]  # it is a Protocol
        assert (await peer.answer())[2].endswith(b"last")
        assert most < 300


async def test_many_requests_in_one_piece_let_others_have_their_turn() -> None:
    async with serving() as running:
        greedy, other = await running.connect(), await running.connect()
        turns: list[bytes] = []
        answer = running.app.direct

        def noted(url: bytes, *more: Any) -> None:
            turns.append(url)
            answer(url, *more)

        running.app.direct = noted  # type: ignore[method-assign, assignment]
        greedy.send(posted("/in/greedy", b"") * 2000)
        other.send(posted("/in/other", b""))
        await other.answer()
        assert turns.index(b"/in/other") < 1000


async def test_a_large_body_in_one_piece_is_whole() -> None:
    async with serving() as running:
        peer = await running.connect()
        for size in (4096, 5000, 60_000, 1_000_000):
            peer.send(posted("/in/demo", b"x" * size))
            _, _, body = await peer.answer()
            assert body in (b"direct " + b"x" * size, b"task " + b"x" * size)
        data = posted("/in/demo", b"y" * 50_000) * 5
        peer.send(data)
        assert [(await peer.answer())[2].lstrip(b"directask ") for _ in range(5)] == [b"y" * 50_000] * 5
