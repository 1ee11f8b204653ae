"""Calls: requests of operations that wait for the writer, bounded in number and in bytes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from oncebox.errors import Overloaded
from oncebox.model import Call, Performed
from oncebox.store import Perform

GROUP = 128
WAITING_BYTES = 64 << 20
FULL = "more calls wait for the disk than the queue holds; send it again in a moment"


class Asked(msgspec.Struct):
    """A call that waits for its turn, and what performs it."""

    call: Call
    perform: Perform
    size: int
    future: asyncio.Future[Performed]
    since: float = msgspec.field(default_factory=time.monotonic)


class Calls:
    """First come, first served; what does not fit is refused at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Asked] = deque()
        self._bytes = 0
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Call, perform: Perform, size: int) -> asyncio.Future[Performed]:
        """Wait for the next group; `size` is what the request holds in memory. Raises Overloaded."""
        if len(self._waiting) >= self._limit or self._bytes + size > max(WAITING_BYTES, size):
            raise Overloaded(FULL, 1)
        future: asyncio.Future[Performed] = self._loop.create_future()
        self._waiting.append(Asked(call, perform, size, future))
        self._bytes += size
        return future

    def take(self) -> list[Asked]:
        """The next group. Also those whose caller has gone: a call that was taken is performed."""
        group = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP))]
        self._bytes -= sum(asked.size for asked in group)
        return group

    def put_back(self, group: Sequence[Asked]) -> None:
        """They come first the next time."""
        self._waiting.extendleft(reversed(group))
        self._bytes += sum(asked.size for asked in group)
