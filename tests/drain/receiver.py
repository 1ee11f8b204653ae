"""A receiver of webhooks that does what it is told, and keeps a log of what it was sent and what it said."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus


@dataclass(frozen=True)
class Request:
    """One request as it came; header names in lower case."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["oncebox-id"]


@dataclass(frozen=True)
class Answer:
    """A status with headers and a body; 0 closes the socket in place of an answer."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


CLOSE = Answer(0)
Behave = Callable[[Request], Awaitable[Answer]]


async def accept(_request: Request) -> Answer:
    return Answer()


class Receiver:
    """A real HTTP server on loopback, in the loop of the test."""

    def __init__(self, behave: Behave = accept) -> None:
        self.behave = behave
        self.log: list[tuple[Request, int]] = []
        self.connections = 0
        self.in_flight = 0
        self.most = 0
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def acknowledged(self) -> Counter[str]:
        """How often each event was answered with 2xx."""
        return Counter(request.id for request, status in self.log if 200 <= status < 300)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)

    async def stop(self) -> None:
        """Go away: the port refuses and open connections end."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            while await self._exchange(reader, writer):
                pass
        self._tasks.discard(task)
        writer.close()
        with suppress(asyncio.CancelledError, ConnectionError):
            await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        request = Request(headers, await reader.readexactly(int(headers.get("content-length", 0))))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            answer = await self.behave(request)
        finally:
            self.in_flight -= 1
        if not answer.status:
            self.log.append((request, 0))
            return False
        fields = {"Content-Length": str(len(answer.body))} | answer.headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        phrase = HTTPStatus(answer.status).phrase
        writer.write(f"HTTP/1.1 {answer.status} {phrase}\r\n{lines}\r\n".encode() + answer.body)
        self.log.append((request, answer.status))
        await writer.drain()
        return True


@asynccontextmanager
async def receiving(behave: Behave = accept) -> AsyncIterator[Receiver]:
    receiver = Receiver(behave)
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()
