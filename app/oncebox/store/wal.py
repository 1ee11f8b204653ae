"""Wal: the write-ahead log: when it is copied back, and who keeps it from becoming short again."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from pathlib import Path

from oncebox.seldom import Seldom
from oncebox.store.books import Books
from oncebox.store.migrations import PAGE_SIZE
from oncebox.store.statement import own

CHECKPOINT_BYTES = 4 << 20
CHECKPOINT_FRAMES = CHECKPOINT_BYTES // PAGE_SIZE
MOST = 64 << 20
QUIET = 300.0

PASSIVE = own("pragma wal_checkpoint(passive)")
TRUNCATE = own("pragma wal_checkpoint(truncate)")

log = logging.getLogger("oncebox.store")


class Wal:
    """The log of one file. `held` says why it is longer than `most` bytes; empty when it is well."""

    def __init__(self, path: Path, books: Books, most: int = MOST) -> None:
        self.held = ""
        self._path = f"{path}-wal"
        self._books = books
        self._most = most
        self._commits = 0
        self._frames = 8.0
        self._kept = 0
        self._size = 0
        self._warnings = Seldom(log, logging.WARNING, seconds=QUIET)

    def bytes(self) -> int:
        """Its size on disk."""
        try:
            return os.stat(self._path).st_size  # noqa: PTH116  # asked after every commit, and half as long
        except OSError:
            return 0

    def wants_checkpoint(self) -> bool:
        """Have enough commits been made since the log was last copied back? How many are enough is learned; that the
        file has grown tells when they are larger than those before."""
        commits = self._books.commits - self._commits
        return commits * self._frames >= CHECKPOINT_FRAMES or (
            commits > 0 and self.bytes() >= self._size + CHECKPOINT_BYTES
        )

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy the log back without waiting for anybody; the next commit starts it anew.

        SQLite does not say how long the log is, and its file does not shrink: the frames of each commit are
        estimated from those that were added since the last checkpoint.
        """
        _busy, frames, copied = db.execute(PASSIVE).fetchone()
        commits = self._books.commits - self._commits
        added = frames - self._kept
        if added > 0 and commits:
            self._frames = max(1.0, (self._frames + added / commits) / 2)
        self._ended(0 if copied >= frames else frames)

    def truncate(self, db: sqlite3.Connection) -> None:
        """Copy the log back and cut it; readers are waited for a moment, then left alone."""
        busy, frames, _copied = db.execute(TRUNCATE).fetchone()
        self._ended(frames if busy else 0)

    def _ended(self, kept: int) -> None:
        """So many frames stay, for somebody still reads them."""
        self._commits = self._books.commits
        self._kept = max(0, kept)
        self._size = self.bytes()
        long = self._kept and self._size > self._most
        self.held = _why(self._size, self._most) if long else ""
        if self.held:
            self._warnings.say(time.monotonic(), "held", f"the log of the file grows: {self.held}")


def _why(size: int, most: int) -> str:
    return (
        f"the write-ahead log has {size >> 20} MiB, more than store.wal_max ({most >> 20} MiB): somebody has been "
        "reading the file for long (another program's open transaction, or a copy being made), and until that ends the "
        "log cannot be cut; find it with `fuser` on the -wal file"
    )
