"""Queue: requests that wait for their commit, bounded in number and in bytes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from oncebox.errors import Overloaded
from oncebox.model import Arrival, Stored

GROUP = 256
GROUP_BYTES = 16 << 20
WAITING_BYTES = 64 << 20
GATHER = 0.005
PATIENCE = 8
# So many that send again as soon as they are answered keep the process busy, until none was answered for so long.
CROWD = 32
LATELY = 0.05


class Waiting(msgspec.Struct):
    """A request that waits for its commit."""

    arrivals: Sequence[Arrival]
    size: int
    since: float
    future: asyncio.Future[list[Stored]]


class Queue:
    """First come, first served; what does not fit is refused at once, so that the sender comes back."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._senders = 0.0
        self._answered_at = 0.0
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, arrivals: Sequence[Arrival]) -> asyncio.Future[list[Stored]]:
        """Wait for the next group. Raises Overloaded."""
        size = 0
        for arrival in arrivals:
            size += len(arrival.body)
            if arrival.decoded is not arrival.body:
                size += len(arrival.decoded)
        if len(self._waiting) >= self._limit or self._bytes + size > max(WAITING_BYTES, size):
            raise Overloaded("more requests wait for the disk than the queue holds; send it again in a moment", 1)
        future: asyncio.Future[list[Stored]] = self._loop.create_future()
        self._waiting.append(Waiting(arrivals, size, time.monotonic(), future))
        self._bytes += size
        return future

    def take(self) -> list[Waiting]:
        """The next group; those whose sender has gone are left out."""
        group: list[Waiting] = []
        size = 0
        while self._waiting and len(group) < GROUP and size < GROUP_BYTES:
            waiting = self._waiting.popleft()
            self._bytes -= waiting.size
            if not waiting.future.done():
                group.append(waiting)
                size += waiting.size
        return group

    async def gather(self) -> None:
        """Wait some turns of the loop for those who sent lately: a commit beside the reading of their next requests
        costs both of them twice, for Python's one lock. Turns that bring nobody are few and short."""
        enough, patience, until = 0.8 * self._senders, PATIENCE, time.monotonic() + GATHER
        while patience and len(self._waiting) < enough and time.monotonic() < until:
            count = len(self._waiting)
            await asyncio.sleep(0)
            patience = PATIENCE if len(self._waiting) > count else patience - 1

    def answered(self, count: int) -> None:
        """So many will be told now: with those who wait, that is how many send at present."""
        self._senders = max(count + len(self._waiting), 0.9 * self._senders)
        self._answered_at = time.monotonic()

    def crowded(self) -> bool:
        """Whether requests come as fast as they are answered, from many at once."""
        return self._senders >= CROWD and time.monotonic() - self._answered_at < LATELY

    def put_back(self, group: Sequence[Waiting]) -> None:
        """They come first the next time."""
        self._waiting.extendleft(reversed(group))
        self._bytes += sum(waiting.size for waiting in group)
