"""Watch: is the inbox well? What readiness says, and the end of a process that a handler holds for ever."""

from __future__ import annotations

import logging
import os
import sys
import traceback

import anyio

from oncebox.drain.drain import Drain
from oncebox.store.sqlite import SQLiteStore

EVERY = 1.0
STUCK = 30.0
STUCK_EXIT = 70

log = logging.getLogger("oncebox.watch")


class Watch:
    """Looks once a second; nothing can end a blocking call in a thread, so a stuck writer ends the process."""

    def __init__(self, store: SQLiteStore, drain: Drain) -> None:
        self._store = store
        self._drain = drain

    def reasons(self) -> list[str]:
        """Why the inbox is not ready; empty when it is."""
        writer = self._store.writer
        return [why for why in (writer.short, writer.trouble, *self._drain.trouble()) if why]

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await anyio.sleep(EVERY)
            self._end_stuck_writer()

    def _end_stuck_writer(self) -> None:
        stuck = self._store.busy.longer_than(STUCK)
        if stuck is None:
            return
        log.critical("%s stuck for %d s, the process ends %s\n%s", stuck[0], STUCK, stuck[1], _stacks())
        logging.shutdown()
        os._exit(STUCK_EXIT)


def _stacks() -> str:
    return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
