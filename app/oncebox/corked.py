"""Corked: a transport that sends the head of an answer together with its body."""

from __future__ import annotations

from typing import Any


class Corked:
    """One system call and one packet for two.

    Only a head that announces a length waits, since its body is written right behind it.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

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
