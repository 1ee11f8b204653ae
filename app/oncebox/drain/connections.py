"""Connections: the lines to receivers. A line is used again as long as that is safe."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError

from oncebox.drain.lastwords import LastWords, client_context
from oncebox.drain.webhook import Head, head_of

# A head that is longer than this is judged by its first line.
HEAD_BYTES = 65_536
# Common servers close a connection that was silent for 5 s; whoever writes just then loses the request.
KEPT_ALIVE = 4.0
SWITCHING = 101
START = b"HTTP/"
# What is shorter is taken whole by the kernel, so its writing does not break.
TAKEN = 1 << 14


class Wire(ResponseHandler):
    """A connection's end. It keeps what came in answer to a request, for an answer that the parser takes offence at."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.used = False
        self.strayed = False
        self.came: bytearray | None = None
        self._last_words: LastWords | None = None

    def ask(self, size: int) -> None:
        """What comes from now on answers a request of so many bytes. At its end, whatever that is, comes `heard`."""
        assert self.transport is not None
        self.came = bytearray()
        if size > TAKEN:
            with suppress(OSError):  # without a descriptor to spare it goes as well as it goes
                self._last_words = LastWords(self.transport)
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
            if self.used and not came and not _begins(data):
                data = self._without_stray(data)
                if not data:
                    return
            if len(came) < HEAD_BYTES:
                came += data
            elif not len(self):
                self.set_exception(HttpProcessingError(message=f"no end of the head within {HEAD_BYTES} bytes"))
                return
        super().data_received(data)

    def _without_stray(self, data: bytes) -> bytes:
        """What comes before an answer is left over from the one before. Then nothing of the line can be trusted."""
        self.strayed = True
        self.force_close()
        at = data.find(START)
        return data[at:] if at >= 0 else b""

    def set_exception(self, exc: BaseException, *cause: Any) -> None:
        """Nothing more is read of what the parser takes offence at, so a body that was under way is at its end."""
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError) and self._payload is not None and not self._payload.is_eof():
            self._payload.feed_eof()

    def connection_lost(self, exc: BaseException | None) -> None:
        """What came before is an answer all the same."""
        if self._last_words is not None:
            for data in self._last_words.take():
                self.data_received(data)
        super().connection_lost(exc)

    def heard(self) -> None:
        """Nothing more is awaited."""
        words, self._last_words = self._last_words, None
        if words is not None:
            words.end()

    async def answer(self) -> tuple[Head, aiohttp.StreamReader]:
        """The head of the answer and its body, as far as it has come. Raises what aiohttp raises. Who is cancelled
        after it has come is cancelled at the next await."""
        try:
            message, content = await self._message()
            while 100 <= message.code < 200 and message.code != SWITCHING:
                message, content = await self._message()
            self.used = True
        except HttpProcessingError:
            head = head_of(bytes(self.came or b""))
            if head is None:
                raise
            return head, self._rest(head)
        self.came = None
        return Head(message.code, message.headers), content

    async def _message(self) -> tuple[aiohttp.http.RawResponseMessage, aiohttp.StreamReader]:
        try:
            return await self.read()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not len(self) or task is None:
                raise
            task.cancel()
            return await self.read()

    def _rest(self, head: Head) -> aiohttp.StreamReader:
        content = aiohttp.StreamReader(self, HEAD_BYTES, loop=self._loop)
        content.feed_data(head.rest)
        content.feed_eof()
        return content

    def sealed(self) -> bool:
        """Whether it is TLS."""
        return self.transport is not None and self.transport.get_extra_info("ssl_object") is not None

    def unsent(self) -> bool:
        """Whether something of the request is still here."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0


def _begins(data: bytes) -> bool:
    """Whether an answer may begin so."""
    return data.startswith(START) or START.startswith(data.lstrip(b"\r\n")[: len(START)])


class Line:
    """A connection that is held by whoever took it, until it rests or ends."""

    __slots__ = ("_connection", "since", "wire")

    def __init__(self, connection: Connection) -> None:
        wire = connection.protocol
        assert isinstance(wire, Wire)
        self.wire = wire
        self.since = 0.0
        self._connection = connection

    def end(self) -> None:
        """Close it. One that has something to send would stay open until that is taken, if it ever is; and so would a
        sealed one until the other side has said goodbye."""
        if self.wire.unsent() or self.wire.sealed():
            self.wire.abort()
        self._connection.close()


class Connections(aiohttp.TCPConnector):
    """What opens lines, and ends them all."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        make: Callable[..., ResponseHandler] = Wire
        self._factory = partial(make, loop=self._loop)
        self._lines: WeakSet[Lines] = WeakSet()

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Of those that are sealed."""
        return client_context()

    def lines(self, request: aiohttp.ClientRequest) -> Lines:
        """The lines to where a request goes."""
        made = Lines(self, request)
        self._lines.add(made)
        return made

    async def close(self, *, abort_ssl: bool = True) -> None:
        """End what rests, and whatever is in use."""
        for lines in self._lines:
            lines.end()
        await super().close(abort_ssl=abort_ssl)


class Lines:
    """The lines to one place. The one that rested last is taken first, so those that are not needed end."""

    def __init__(self, connections: Connections, request: aiohttp.ClientRequest) -> None:
        self._connections = connections
        self._request = request
        self._resting: deque[Line] = deque()
        self._loop = asyncio.get_running_loop()
        self._tidies = False

    async def take(self, seconds: float, *, new: bool = False) -> Line:
        """One that was never used, or one that may be used again: its receiver has said nothing since its last answer,
        which would be taken for the answer to what is sent next. If it is to be new, those at rest end, since they are
        as old as the one that has failed. Raises ConnectionTimeoutError and what aiohttp raises."""
        if new:
            self.end()
        while self._resting:
            line = self._resting.pop()
            if line.wire.is_connected() and not line.wire.should_close and not self._is_old(line):
                return line
            line.end()
        try:
            within = aiohttp.ClientTimeout(total=None, connect=seconds)
            return Line(await self._connections.connect(self._request, [], within))
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None

    def rest(self, line: Line) -> None:
        """Nothing more comes over it: it is free for the next one, if it is of use."""
        if line.wire.should_close or line.wire.unsent() or self._connections.closed:
            line.end()
            return
        line.since = self._loop.time()
        self._resting.append(line)
        if not self._tidies:
            self._tidies = True
            self._loop.call_later(KEPT_ALIVE, self._tidy)

    def end(self) -> None:
        """End those at rest."""
        while self._resting:
            self._resting.pop().end()

    def _tidy(self) -> None:
        while self._resting and self._is_old(self._resting[0]):
            self._resting.popleft().end()
        self._tidies = bool(self._resting)
        if self._tidies:
            self._loop.call_at(self._resting[0].since + KEPT_ALIVE, self._tidy)

    def _is_old(self, line: Line) -> bool:
        return self._loop.time() >= line.since + KEPT_ALIVE
