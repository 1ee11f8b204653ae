"""Blame: is a write that was refused for want of room the disk's fault, or that of who asked for it?"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable

from oncebox.store.faults import is_busy

# A disk may be full for a moment: so often the same one is refused before it may be its own fault.
TRIES = 3
# Who is remembered; the oldest are forgotten, and have their tries anew.
REMEMBERED = 1000


class Blame:
    """`short` says why the disk is full or gone; empty when it is well."""

    def __init__(self, short: Callable[[], str]) -> None:
        self._short = short
        self._refused: dict[Hashable, int] = {}

    def is_own(self, who: Hashable, error: sqlite3.Error) -> bool:
        """Is it refused again and again what a disk with room would take? Whether others' writes are taken meanwhile
        shows when this is written down: that is one."""
        return self._refused.get(who, 0) + 1 >= TRIES and not is_busy(error) and not self._short()

    def spared(self, who: Hashable) -> None:
        """It was refused, and has its next try later."""
        self._refused[who] = self._refused.pop(who, 0) + 1
        if len(self._refused) > REMEMBERED:
            del self._refused[next(iter(self._refused))]


def own_fault(error: sqlite3.Error) -> str:
    """The reason to give for it."""
    return (
        f"what it writes was refused ({error}) {TRIES} times, while the disk has room and takes what others write; "
        "write less at a time, or look for a limit on the size of files"
    )
