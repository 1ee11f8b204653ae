"""Corked: a transport that sends the head of an answer together with its body, and waits for no reader for ever."""

from __future__ import annotations

from typing import Any

# Seconds in which nothing of what waits to be sent is taken. The system's own buffer of some megabytes empties first,
# and tells of it in large steps: a shorter time would end slow readers, too.
STALL = 300.0


class Corked:
    """One system call and one packet for two.

    Only a head that announces a length waits, since its body is written right behind it.
    """

    def __init__(self, transport: Any, loop: Any) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._left = 0
        self._watching: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send, or keep a head until the next piece."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and b"\r\ncontent-length: " in data and data.endswith(b"\r\n\r\n"):
            self._head = data
            return
        self._transport.write(data)

    def write_whole(self, answer: bytes) -> None:
        """Send a whole answer."""
        self.flush()
        self._transport.write(answer)

    def flush(self) -> None:
        """Send a head that no body follows."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""

    def close(self) -> None:
        """Send what waits, then close."""
        self.flush()
        self._transport.close()
        self.watch()

    def watch(self) -> None:
        """Something waits to be sent: hang up if the other side takes nothing of it any more."""
        if self._watching is None:
            self._left = self._transport.get_write_buffer_size()
            self._watching = self._loop.call_later(STALL, self._look)

    def _look(self) -> None:
        self._watching = None
        left = self._transport.get_write_buffer_size()
        if left and left == self._left:
            self._transport.abort()
        elif left:
            self.watch()

    def gone(self) -> None:
        """The connection is lost."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
