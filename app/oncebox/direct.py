"""Direct: a whole request that an application answers by one call, without a task and messages of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from oncebox.beneath import STATUS_LINE
from oncebox.content import EMPTY

CLOSE = ("connection", "close")
Pairs = tuple[tuple[str, str], ...]


class Unheard:
    """The message event of a request whose body nobody waits for."""

    def set(self) -> None:
        """Nobody waits."""


class Direct:
    """A request that came in one piece. To uvicorn it is a cycle like those that have a task."""

    __slots__ = ("_protocol", "body", "disconnected", "keep_alive", "more_body", "response_complete")

    message_event = Unheard()

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self.body = bytearray()
        self.more_body = True
        self.disconnected = self.response_complete = False
        self.keep_alive = True

    def reply(self, status: int, content_type: str, body: bytes, headers: Pairs = ()) -> None:
        """Send the answer; to be called once."""
        protocol = self._protocol
        self.keep_alive = self.keep_alive and CLOSE not in headers
        head = head_of(status, content_type, headers, self.keep_alive)
        self.response_complete = True
        if self.disconnected:
            return
        if status in EMPTY:
            body = b""
        length = b"\r\n" if status == 204 else b"content-length: %d\r\n\r\n" % len(body)  # RFC 9110, 8.6
        protocol.transport.write_whole(b"".join((head, protocol.dated(), length, body)))
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


@lru_cache(maxsize=256)
def head_of(status: int, content_type: str, headers: Pairs, keep_alive: bool) -> bytes:
    """The status line and the header lines that many answers share."""
    pairs = [("content-type", content_type), *(pair for pair in headers if pair[0] != "connection")]
    if not keep_alive:
        pairs.append(CLOSE)
    lines = "".join([f"{name}: {value}\r\n" for name, value in pairs])
    return STATUS_LINE[status] + lines.encode("latin-1")
