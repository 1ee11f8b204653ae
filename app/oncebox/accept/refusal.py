"""Refusal: requests that were turned away, on their way into the store's ring without any reply waiting for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence

from oncebox.model import Refused
from oncebox.seldom import Seldom

Refuse = Callable[[Sequence[Refused], dict[tuple[str, str], int], int], Awaitable[None]]

# Five writes a second, however many are refused. Each has good traffic wait for the disk, so a flood gets fewer.
PAUSE = 0.2
FLOOD_PAUSE = 1.0
PER_SOURCE = 200
MAX_BYTES = 8 << 20
# A source's burst is kept whole. Of a flood that goes on only so many a second are: they would push each other out of
# the ring anyway, and the writing would slow good traffic down. A large request counts as several.
PER_SECOND = 20
ONE = 128 << 10

log = logging.getLogger("oncebox.accept")


class Refusals:
    """Waiting refusals, bounded: a share for each source and 8 MiB in all. Every one is counted, kept or not.

    `totals` counts by (source, slug) since the start; a source that does not exist counts as "".
    """

    def __init__(self, refuse: Refuse, clock: Callable[[], int], timer: Callable[[], float] = time.monotonic) -> None:
        self._refuse = refuse
        self._clock = clock
        self._timer = timer
        self.totals: Counter[tuple[str, str]] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._waiting: dict[str, deque[Refused]] = {}
        self._bytes = 0
        self._shares: dict[str, tuple[float, float]] = {}
        self._news = asyncio.Event()
        self._faults = Seldom(log, logging.WARNING)

    def count(self, source: str, slug: str) -> None:
        """Count a refusal without keeping its request."""
        self.totals[source, slug] += 1
        if source:
            self._counts[source, slug] += 1
            self._news.set()

    def wants(self, source: str, size: int) -> bool:
        """Whether a refused request with a body of this size shall be kept: takes it from its source's share."""
        now = self._timer()
        left, at = self._shares.get(source, (float(PER_SOURCE), now))
        left = min(PER_SOURCE, left + (now - at) * PER_SECOND)
        wanted = left >= 1
        self._shares[source] = (left - 1 - size / ONE if wanted else left, now)
        return wanted

    def keep(self, refused: Refused) -> None:
        """Count a refusal and keep its request; when too many wait, older ones of the greediest source go."""
        self.count(refused.source, refused.slug)
        self._add(refused)

    def _add(self, refused: Refused) -> None:
        waiting = self._waiting.setdefault(refused.source, deque())
        waiting.append(refused)
        self._bytes += _size(refused)
        if len(waiting) > PER_SOURCE:
            self._drop(waiting)
        while self._bytes > MAX_BYTES and sum(map(len, self._waiting.values())) > 1:
            self._drop(max(self._waiting.values(), key=lambda some: sum(map(_size, some))))

    def _drop(self, waiting: deque[Refused]) -> None:
        self._bytes -= _size(waiting.popleft())

    async def run(self) -> None:
        """Write what waits, at most five times a second, in a flood once a second, until cancelled."""
        pause = PAUSE
        while True:
            await self._news.wait()
            await self.flush()
            await asyncio.sleep(pause)
            pause = min(2 * pause, FLOOD_PAUSE) if self._news.is_set() else PAUSE

    async def flush(self) -> None:
        """Write all that waits now. What the store cannot take, for whatever reason, waits for the next time: a full
        disk refuses senders and this write alike, and must not end the server."""
        self._news.clear()
        refused = [one for waiting in self._waiting.values() for one in waiting]
        counts = dict(self._counts)
        if not counts:
            return
        self._waiting.clear()
        self._counts.clear()
        self._bytes = 0
        try:
            await self._refuse(refused, counts, self._clock())
        except Exception as error:  # noqa: BLE001  # nothing that is only counted may end the server
            line = f"refused requests are not written yet, and kept for later: {error}"
            self._faults.say(time.monotonic(), "unwritten", line)
            self._counts.update(counts)
            self._put_back(refused)
            self._news.set()

    def _put_back(self, refused: Sequence[Refused]) -> None:
        """They come before those that were kept meanwhile, within the same bounds."""
        later, self._waiting, self._bytes = self._waiting, {}, 0
        for one in [*refused, *(one for waiting in later.values() for one in waiting)]:
            self._add(one)


def _size(refused: Refused) -> int:
    return len(refused.body) + len(refused.url) + sum(len(name) + len(value) for name, value in refused.headers)
