"""Exchange: a request to a URL and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import aiohttp
from aiohttp.http import StreamWriter
from yarl import URL

from oncebox.deadline import Deadline
from oncebox.drain.connections import Connections, Line, Lines, Wire
from oncebox.drain.webhook import Head

# Larger bodies are written piece by piece, while the answer is awaited already.
AT_ONCE = 1 << 20
PIECE = 1 << 18
# As much of a body as may lie in the buffers of both sides while its receiver answers from the head alone.
UNREAD = 1 << 16
UNSAID = ("Content-Type",)
BODILESS = (204, 304)
WAITED_TOO_LONG = 408


class Answer:
    """What a receiver says, as far as it has come. The line is held until it is released or closed."""

    __slots__ = ("_line", "_lines", "content", "headers", "status")

    def __init__(self, head: Head, content: aiohttp.StreamReader, line: Line, lines: Lines) -> None:
        self.status = head.status
        self.headers = head.headers
        self.content = content
        self._line: Line | None = line
        self._lines = lines

    def release(self) -> None:
        """Nothing more comes: the line is free for the next one."""
        line, self._line = self._line, None
        if line is not None:
            self._lines.rest(line)

    def close(self) -> None:
        """Nobody reads what is left, so the line is of no more use."""
        line, self._line = self._line, None
        if line is not None:
            line.end()


class Exchange:
    """Posts to one URL over the client's connections, by its parser. What is the same in each request is made once: a
    session makes, copies and checks it for every one, which costs more than sending it."""

    def __init__(self, client: aiohttp.ClientSession, url: str, connecting: float) -> None:
        assert isinstance(client.connector, Connections)
        connections, to = client.connector, URL(url)
        sealed = connections.context if to.scheme == "https" else True
        request = aiohttp.ClientRequest(
            "POST", to, headers=client.headers, skip_auto_headers=UNSAID, session=client, ssl=sealed
        )
        request.headers.popall("Content-Length", None)  # of no body; each has its own
        self._head = f"POST {request.url.raw_path_qs} HTTP/1.1\r\n" + _lines(request.headers)
        self._lines = connections.lines(request)
        self._connecting = connecting
        self._loop = asyncio.get_running_loop()

    async def post(self, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        """Send a request and wait for the head of its answer, for so many seconds in all. Raises
        ConnectionTimeoutError if no connection came in time, TimeoutError if no answer did, and what aiohttp raises.

        A connection that ends without a word after it had been idle, or with 408, was most likely closed before the
        request came: the request is sent once more, over a new one."""
        until = self._loop.time() + seconds
        head = f"{self._head}{_lines(headers)}Content-Length: {len(body)}\r\n\r\n".encode()
        line = await self._lines.take(self._connecting)
        used = line.wire.used
        try:
            answer = await self._over(line, until, head, body)
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            if not used or line.wire.came or line.wire.strayed or self._loop.time() >= until:
                raise
            line = await self._another(until, error)
        else:
            if not used or answer.status != WAITED_TOO_LONG or self._loop.time() >= until:
                return answer
            answer.close()
            line = await self._another(until, aiohttp.ServerDisconnectedError())
        return await self._over(line, until, head, body)

    async def _another(self, until: float, error: Exception) -> Line:
        """A new line; if none is to be had, the first one's error stands, since that may have been heard."""
        try:
            return await self._lines.take(min(self._connecting, until - self._loop.time()), new=True)
        except (aiohttp.ClientError, OSError):
            raise error from None

    async def _over(self, line: Line, until: float, head: bytes, body: bytes) -> Answer:
        wire = line.wire
        late = Deadline(self._loop, until, partial(wire.set_exception, TimeoutError()))
        try:
            wire.ask(len(head) + len(body))
            if len(body) <= AT_ONCE:
                assert wire.transport is not None
                wire.transport.write(head + body)
                said, content = await wire.answer()
            else:
                said, content = await _meanwhile(wire, head, body)
        except BaseException:
            line.end()
            raise
        finally:
            late.cancel()
            wire.heard()
        if _perhaps_unread(said.status, len(body)) or _contradicts_itself(said):
            wire.force_close()
        answer = Answer(said, content, line, self._lines)
        if content.is_eof():
            answer.release()
        return answer


async def _meanwhile(wire: Wire, head: bytes, body: bytes) -> tuple[Head, aiohttp.StreamReader]:
    """The answer may come before all is sent."""
    writing = asyncio.create_task(_write(wire, head, body))
    try:
        return await wire.answer()
    finally:
        writing.cancel()


async def _write(wire: Wire, head: bytes, body: bytes) -> None:
    """Piece by piece, as fast as they are taken. If that fails the connection is at its end, and says so itself."""
    writer, rest = StreamWriter(wire, asyncio.get_running_loop()), memoryview(body)
    with suppress(aiohttp.ClientError, OSError):
        await writer.write(head, drain=False)
        for start in range(0, len(body), PIECE):
            await writer.write(rest[start : start + PIECE], drain=start + PIECE < len(body))
            await asyncio.sleep(0)  # a turn for what comes meanwhile, be it the end


def _perhaps_unread(status: int, size: int) -> bool:
    """Whether the next request might queue up behind a body that nobody reads: who refuses often has not read it. To
    connect anew costs nothing beside a body of megabytes."""
    return size > AT_ONCE or (size > UNREAD and not 200 <= status < 300)


def _contradicts_itself(said: Head) -> bool:
    """Whether it announces a body that cannot be part of it: what then comes would be taken for the next answer."""
    if said.status not in BODILESS:
        return False
    return "Transfer-Encoding" in said.headers or said.headers.get("Content-Length", "0").strip() != "0"


def _lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
