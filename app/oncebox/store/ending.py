"""Ending: a file that is closed has everything in it that was counted, and says that it was closed well."""

from __future__ import annotations

import asyncio
import logging
import sqlite3

import aiosqlite

from oncebox.store.books import Books
from oncebox.store.care import Care
from oncebox.store.faults import is_busy
from oncebox.store.jobs import roll_back
from oncebox.store.statement import own
from oncebox.store.thread import on_thread

WAITS = (0.02, 0.2, 0.5, 1.0, 2.0, 0.0)
CLEAN = own("update meta set value = 1 where name = 'clean'")

log = logging.getLogger("oncebox.store")


async def end_patiently(db: aiosqlite.Connection, raw: sqlite3.Connection, care: Care, books: Books) -> None:
    """A file that another program holds is waited for, but no stop fails over the last counts."""
    for wait in WAITS:
        error = await on_thread(db, _end, raw, care, books)
        if error is None:
            return
        await asyncio.sleep(wait if is_busy(error) else 0.0)
    log.warning("closed without the last counts of repeats; what was accepted is on disk")


def _end(raw: sqlite3.Connection, care: Care, books: Books) -> sqlite3.Error | None:
    try:
        care.flush(raw)
        raw.execute(CLEAN)
        care.truncate(raw)
    except sqlite3.Error as error:
        roll_back(raw, books)
        return error
    return None
