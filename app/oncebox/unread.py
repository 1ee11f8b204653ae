"""Unread: what has come on a connection and is not parsed yet."""

from __future__ import annotations

from typing import Any

from oncebox.beneath import FlowControl

# Small enough that the requests within take neither long nor much memory; a body loses little by it.
PIECE = 4 << 10


class Unread(FlowControl):
    """A connection's flow: nothing more is read before all that was read is parsed.

    A request weighs a hundred times as much once it is parsed, so what comes behind others stays as it came: `rest`.
    """

    def __init__(self, transport: Any) -> None:
        super().__init__(transport)
        self.rest = memoryview(b"")

    def add(self, data: bytes) -> None:
        """More has come."""
        self.rest = memoryview(bytes(self.rest) + data if self.rest else data)

    def next(self) -> bytes:
        """Take the next piece."""
        piece, self.rest = self.rest[:PIECE], self.rest[PIECE:]
        return bytes(piece)

    def drop(self) -> None:
        """Nobody will parse it."""
        self.rest = memoryview(b"")

    def end(self) -> None:
        """Nothing more is read or parsed."""
        self.rest = memoryview(b"\0")
        self.pause_reading()

    def resume_reading(self) -> None:
        """Read again, unless something is left to parse."""
        if not self.rest:
            super().resume_reading()
