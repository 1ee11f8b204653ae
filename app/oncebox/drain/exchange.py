"""Exchange: a request over a connection and what comes back. Connections are used again as long as that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, StreamWriter
from yarl import URL

from oncebox.drain.webhook import Head, head_of

# Larger bodies are written piece by piece, while the answer is awaited already.
AT_ONCE = 1 << 20
PIECE = 1 << 18
# A head that is longer than this is judged by its first line.
HEAD_BYTES = 65_536
# As much of a body as may lie in the buffers of both sides while its receiver answers from the head alone.
UNREAD = 1 << 16
UNSAID = ("Content-Type",)
SWITCHING = 101


class Wire(ResponseHandler):
    """A connection's end. It keeps what came in answer to a request, for an answer that the parser takes offence at."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.used = False
        self.came: bytearray | None = None

    def ask(self) -> None:
        """What comes from now on is an answer."""
        self.came = bytearray()
        self.set_response_params(
            read_until_eof=True,
            auto_decompress=False,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            max_headers=HEAD_BYTES,
        )

    def data_received(self, data: bytes) -> None:
        came = self.came
        if came is not None:
            if len(came) < HEAD_BYTES:
                came += data
            elif not len(self):
                self.set_exception(HttpProcessingError(message=f"no end of the head within {HEAD_BYTES} bytes"))
                return
        super().data_received(data)

    def set_exception(self, exc: BaseException, *cause: Any) -> None:
        """Nothing more is read of what the parser takes offence at, so a body that was under way is at its end."""
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError) and self._payload is not None and not self._payload.is_eof():
            self._payload.feed_eof()

    async def answer(self) -> tuple[Head, aiohttp.StreamReader]:
        """The head of the answer and its body, as far as it has come. Raises what aiohttp raises."""
        try:
            message, content = await self.read()
            while 100 <= message.code < 200 and message.code != SWITCHING:
                message, content = await self.read()
            self.used = True
        except HttpProcessingError:
            head = head_of(bytes(self.came or b""))
            if head is None:
                raise
            return head, self._rest(head)
        self.came = None
        return Head(message.code, message.headers), content

    def _rest(self, head: Head) -> aiohttp.StreamReader:
        content = aiohttp.StreamReader(self, HEAD_BYTES, loop=self._loop)
        content.feed_data(head.rest)
        content.feed_eof()
        return content

    def unsent(self) -> bool:
        """Whether something of the request is still here."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0


class Connections(aiohttp.TCPConnector):
    """Connections that are used again only if the receiver has said nothing since its last answer: it would be taken
    for the answer to what is sent next."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        make: Callable[..., ResponseHandler] = Wire
        self._factory = partial(make, loop=self._loop)

    async def take(
        self, request: aiohttp.ClientRequest, within: aiohttp.ClientTimeout, *, new: bool = False
    ) -> tuple[Connection, Wire]:
        """One that was never used or may be used again; if it is to be new, the idle ones are closed, since they are
        as old as the one that has failed. Raises ConnectionTimeoutError and what aiohttp raises."""
        while True:
            try:
                connection = await self.connect(request, [], within)
            except TimeoutError:
                raise aiohttp.ConnectionTimeoutError from None
            wire = connection.protocol
            assert isinstance(wire, Wire)
            if not wire.used or not (new or wire.should_close):
                return connection, wire
            connection.close()


class Answer:
    """What a receiver says, as far as it has come. The connection is held until it is released or closed."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(self, head: Head, content: aiohttp.StreamReader, connection: Connection) -> None:
        self.status = head.status
        self.headers = head.headers
        self.content = content
        self._connection = connection

    def release(self) -> None:
        """Nothing more comes: the connection is free for the next one."""
        wire = self._connection.protocol
        if isinstance(wire, Wire) and wire.unsent():
            self.close()
        else:
            self._connection.release()

    def close(self) -> None:
        """Nobody reads what is left, so the connection is of no more use."""
        _end(self._connection)


class Exchange:
    """Posts to one URL over the client's connections, by its parser. What is the same in each request is made once: a
    session makes, copies and checks it for every one, which costs more than sending it."""

    def __init__(self, client: aiohttp.ClientSession, url: str, connecting: float) -> None:
        assert isinstance(client.connector, Connections)
        self._connections = client.connector
        self._request = aiohttp.ClientRequest(
            "POST", URL(url), headers=client.headers, skip_auto_headers=UNSAID, session=client
        )
        self._request.headers.popall("Content-Length", None)  # of no body; each has its own
        self._head = f"POST {self._request.url.raw_path_qs} HTTP/1.1\r\n" + _lines(self._request.headers)
        self._connecting = connecting
        self._within = _within(connecting)
        self._loop = asyncio.get_running_loop()

    async def post(self, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        """Send a request and wait for the head of its answer, for so many seconds in all. Raises
        ConnectionTimeoutError if no connection came in time, TimeoutError if no answer did, and what aiohttp raises.

        A connection that ends without a word after it had been idle was most likely closed before the request came:
        the request is sent once more, over a new one."""
        until = self._loop.time() + seconds
        head = f"{self._head}{_lines(headers)}Content-Length: {len(body)}\r\n\r\n".encode()
        connection, wire = await self._connections.take(self._request, self._within)
        used = wire.used
        try:
            return await self._over(connection, wire, until, head, body)
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            if not used or wire.came or self._loop.time() >= until:
                raise
            connection, wire = await self._another(until, error)
        return await self._over(connection, wire, until, head, body)

    async def _another(self, until: float, error: Exception) -> tuple[Connection, Wire]:
        """A new connection; if none is to be had, the first one's error stands, since that may have been heard."""
        within = _within(min(self._connecting, until - self._loop.time()))
        try:
            return await self._connections.take(self._request, within, new=True)
        except (aiohttp.ClientError, OSError):
            raise error from None

    async def _over(self, connection: Connection, wire: Wire, until: float, head: bytes, body: bytes) -> Answer:
        late = self._loop.call_at(until, wire.set_exception, TimeoutError())
        try:
            said, content = await _ask(wire, head, body)
        except BaseException:
            _end(connection)
            raise
        finally:
            late.cancel()
        if _perhaps_unread(said.status, len(body)):
            wire.force_close()
        answer = Answer(said, content, connection)
        if content.is_eof():
            answer.release()
        return answer


async def _ask(wire: Wire, head: bytes, body: bytes) -> tuple[Head, aiohttp.StreamReader]:
    wire.ask()
    assert wire.transport is not None
    if len(body) <= AT_ONCE:
        wire.transport.write(head + body)
        return await wire.answer()
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


def _perhaps_unread(status: int, size: int) -> bool:
    """Whether the next request might queue up behind a body that nobody reads: who refuses often has not read it. To
    connect anew costs nothing beside a body of megabytes."""
    return size > AT_ONCE or (size > UNREAD and not 200 <= status < 300)


def _end(connection: Connection) -> None:
    """Close it. One that has something to send would stay open until that is taken, if it ever is."""
    wire = connection.protocol
    if isinstance(wire, Wire) and wire.unsent():
        wire.abort()
    connection.close()


def _within(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=seconds)


def _lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
