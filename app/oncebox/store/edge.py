"""Edge: what those who call the store are told of SQLite's errors; inside, the errors stay themselves."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from oncebox.errors import Overloaded, StorageFull, StoreError
from oncebox.store.faults import advice, is_busy, is_of_the_disk

BUSY = "another program holds the file; send it again in a moment"


def told(error: Exception) -> Exception:
    """An error of SQLite's as one of ours that keeps it as its cause; any other is itself."""
    if not isinstance(error, sqlite3.Error):
        return error
    if is_busy(error):
        ours: StoreError = Overloaded(BUSY, 2)
    elif is_of_the_disk(error):
        ours = StorageFull(unwritten(error), 5)
    else:
        ours = StoreError(f"{type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours


def unwritten(error: Exception) -> str:
    """What happened to a write that the disk refused, and what a person can do about it."""
    return f"the file cannot be written ({error}); {advice(error)}"


@contextmanager
def translated() -> Iterator[None]:
    """SQLite's errors leave the block as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise told(error) from error


def answer(future: asyncio.Future[Any], outcome: object) -> None:
    """Tell who waits; an error is raised there. Who has gone is told nothing."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(told(outcome))
    else:
        future.set_result(outcome)
