"""Deadline: time that is up when nothing has come by then. A process that was held up hears its timers before its
connections, so that what has come long since would be too late: for as long as it was held up, it listens first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

# However it was, so long; and no longer than that.
LEAST, MOST = 0.005, 1.0


class Deadline:
    """Calls something at a time of the loop, unless it is cancelled."""

    __slots__ = ("_call", "_handle", "_loop", "_until")

    def __init__(self, loop: asyncio.AbstractEventLoop, until: float, call: Callable[[], object]) -> None:
        self._loop, self._until, self._call = loop, until, call
        self._handle = loop.call_at(until, self._listen)

    def cancel(self) -> None:
        """It came in time."""
        self._handle.cancel()

    def _listen(self) -> None:
        self._handle = self._loop.call_later(_grace(self._loop, self._until), self._call)


async def within(future: asyncio.Future[Any], seconds: float) -> bool:
    """Whether it is done within so many seconds; it goes on if not."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    done, _ = await asyncio.wait({future}, timeout=seconds)
    if not done:
        done, _ = await asyncio.wait({future}, timeout=_grace(loop, until))
    return bool(done)


def _grace(loop: asyncio.AbstractEventLoop, until: float) -> float:
    return min(max(loop.time() - until, LEAST), MOST)
