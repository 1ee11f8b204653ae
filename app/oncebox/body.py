"""Body: bounded reading of what a client sends, and its content encoding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from functools import partial
from types import coroutine
from typing import Any

from oncebox import encoding
from oncebox.errors import Rejected

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

# A body that dribbles in for longer holds memory for nobody's good.
SLOWEST = 30.0
# Seconds: for the rest of a refused body, and for the next piece of it.
LINGER, SILENCE = 5.0, 1.0
_CLOSE = (("connection", "close"),)
_TAKEN = (("accept-encoding", "gzip, deflate, identity"),)


class ClientGone(Exception):
    """The client went away before its body was whole; there is nobody to answer."""


async def read_body(receive: Receive, limit: int, declared: int | None) -> bytes:
    """The whole body. A declared length over the limit is refused unread, an undeclared one as it grows.

    Raises Rejected 413 and 408 (both close the connection) and ClientGone.
    """
    if declared is not None and declared > limit:
        raise too_large(limit)
    first = _message(receive)
    try:
        # Nearly always the body has come with the headers: then no timer is needed, which costs more than the reading.
        waiting = first.send(None)
    except StopIteration as done:
        body = _within(_chunk(done.value), limit)
        return await _in_time(_collect(body, receive, limit)) if done.value.get("more_body") else body
    return await _in_time(_collect_after(_resumed(first, waiting), receive, limit))


async def _in_time(body: Coroutine[Any, Any, bytes]) -> bytes:
    try:
        async with asyncio.timeout(SLOWEST):
            return await body
    except TimeoutError:
        raise Rejected(408, "bad-request", f"the body was not complete after {SLOWEST:.0f} s", _CLOSE) from None


async def _message(receive: Receive) -> Message:
    return await receive()


@coroutine
def _resumed(started: Coroutine[Any, Any, Message], waiting: Any) -> Generator[Any, Any, Message]:
    """Goes on with a coroutine that has taken its first step and waits for something."""
    while True:
        try:
            sent = yield waiting
            step = partial(started.send, sent)
        except BaseException as error:  # noqa: BLE001  # a cancellation goes where the waiting is
            step = partial(started.throw, error)
        try:
            waiting = step()
        except StopIteration as done:
            message: Message = done.value
            return message


async def _collect_after(first: Awaitable[Message], receive: Receive, limit: int) -> bytes:
    message = await first
    body = _within(_chunk(message), limit)
    return await _collect(body, receive, limit) if message.get("more_body") else body


async def _collect(body: bytes, receive: Receive, limit: int) -> bytes:
    whole, more = bytearray(body), True
    while more:
        message = await receive()
        chunk = _chunk(message)
        if len(whole) + len(chunk) > limit:
            raise too_large(limit)
        whole += chunk
        more = message.get("more_body", False)
    return bytes(whole)


def _within(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise too_large(limit)
    return body


def _chunk(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone
    chunk: bytes = message.get("body", b"")
    return chunk


def too_large(limit: int) -> Rejected:
    """The refusal of a body over the limit; the rest of it is not waited for."""
    return Rejected(413, "too-large", f"the body is larger than {limit} bytes, decoded or as sent", _CLOSE)


def decode(body: bytes, named: str, limit: int) -> bytes:
    """The body without its content encoding: gzip (also of several members), deflate or none.

    Never holds more than `limit` decoded bytes. Raises Rejected 415 for other encodings and damaged data, and 413.
    """
    if not body:
        return body
    try:
        return encoding.decode(body, named, limit)
    except encoding.BadEncoding as error:
        raise Rejected(415, "bad-encoding", str(error), _TAKEN) from None
    except encoding.TooBig:
        raise too_large(limit) from None


class Hearing:
    """What a client sends, and whether there is more of it to come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.more = True

    async def __call__(self) -> Message:
        """The next piece."""
        message = await self._receive()
        self.more = message.get("more_body", False)
        return message


async def hear_out(receive: Hearing) -> None:
    """Let who is still sending finish, within bounds: a close over unread bytes is a reset, which eats the answer."""
    until = asyncio.get_running_loop().time() + LINGER
    while receive.more and (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            async with asyncio.timeout(min(left, SILENCE)):
                await receive()
        except TimeoutError:
            return
