"""Watch: is the inbox well? What readiness says, the end of a process that a handler holds for ever, and what is owed
when the clock is set back."""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Callable

import anyio

from oncebox.clock import Setbacks
from oncebox.drain.drain import Drain
from oncebox.model import MICROSECONDS
from oncebox.seldom import Seldom
from oncebox.store.sqlite import SQLiteStore
from oncebox.store.waits import bring_forward

EVERY = 1.0
STUCK = 30.0
STUCK_EXIT = 70

log = logging.getLogger("oncebox.watch")


class Watch:
    """Looks once a second; nothing can end a blocking call in a thread, so a stuck writer ends the process."""

    def __init__(self, store: SQLiteStore, drain: Drain, wall: Callable[[], int]) -> None:
        self._store = store
        self._drain = drain
        self._wall = wall
        self._setbacks = Setbacks(wall)
        self._faults = Seldom(log, logging.WARNING)

    def reasons(self) -> list[str]:
        """Why the inbox is not ready; empty when it is."""
        writer = self._store.writer
        return [why for why in (writer.short, writer.trouble, *self._drain.trouble()) if why]

    async def run(self) -> None:
        """Watch until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_clock)
            while True:
                await anyio.sleep(EVERY)
                self._end_stuck_writer()

    async def _watch_clock(self) -> None:
        back = 0
        while True:
            await anyio.sleep(EVERY)
            back += self._setbacks.since_last()
            if back and await self._bring_forward(back):
                back = 0

    async def _bring_forward(self, back: int) -> bool:
        """Nothing waits longer because the clock was set back. False: the file refused, so it is to be tried again."""
        try:
            moved = await self._store.change(lambda db, _books: bring_forward(db, back, self._wall()))
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not end the server
            self._faults.say(time.monotonic(), "clock", f"the clock was set back, and what waits still waits: {error}")
            return False
        log.warning(
            "the clock was set back by %.0f s; waiting deliveries brought forward: %d", back / MICROSECONDS, moved
        )
        self._drain.wake()
        return True

    def _end_stuck_writer(self) -> None:
        stuck = self._store.busy.longer_than(STUCK)
        if stuck is None:
            return
        log.critical("%s stuck for %d s, the process ends %s\n%s", stuck[0], STUCK, stuck[1], _stacks())
        logging.shutdown()
        os._exit(STUCK_EXIT)


def _stacks() -> str:
    return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
