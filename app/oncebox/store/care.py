"""Care: the small steps the writer takes between jobs: replay counts, variants, refused requests, checkpoints."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from oncebox.model import Arrival
from oncebox.store.accepts import Outcome
from oncebox.store.books import Books
from oncebox.store.migrations import PAGE_SIZE
from oncebox.store.reruns import revive
from oncebox.store.routing import Routing
from oncebox.store.statement import BEGIN, COMMIT, own

CHECKPOINT_FRAMES = (4 << 20) // PAGE_SIZE
VARIANTS = 3
WAITING_VARIANTS = 200

COUNT = own(
    "insert into replays (seq, replays, last_at, conflicts) values (?, ?, ?, ?) on conflict (seq) do update set "
    "replays = replays + excluded.replays, last_at = max(last_at, excluded.last_at), "
    "conflicts = conflicts + excluded.conflicts"
)
SOURCE = own("select source from events where seq = ?")
KEEP_VARIANT = own(
    "insert into variants (seq, body_hash, first_at, content_type, encoding, body) select ?, ?, ?, ?, ?, ? "
    "where (select count(*) from variants where seq = ?) < ? on conflict do nothing"
)
TRIAL = own("update meta set value = value where name = 'clean'")
PASSIVE = own("pragma wal_checkpoint(passive)")
TRUNCATE = own("pragma wal_checkpoint(truncate)")


Least = Callable[[int], int]


def trial(db: sqlite3.Connection) -> None:
    """Write something, to see whether the file can be written again. Raises sqlite3.Error when it cannot."""
    db.execute(BEGIN)
    db.execute(TRIAL)
    db.execute(COMMIT)


class Tally(msgspec.Struct):
    """Replays of one event that are not in the file yet."""

    replays: int = 0
    last_at: int = 0
    conflicts: int = 0


class Care:
    """What may be written a little later. Lost in a crash: at most the last second's counts, never an event."""

    def __init__(self, path: Path, books: Books, routing: Routing, *, checkpoint: float, least: Least) -> None:
        self._wal = Path(f"{path}-wal")
        self._books = books
        self._routing = routing
        self._folder = path.parent
        self._least = least
        self._every = checkpoint
        self._tallies: dict[int, Tally] = {}
        self._variants: list[tuple[int, Arrival]] = []
        self._truncate_at = time.monotonic() + checkpoint
        self._commits = 0
        self._frames = 8.0

    def noticed(self, outcome: Outcome) -> None:
        """Remember replays and differing bodies for the next step."""
        for seq, at, conflict in outcome.replays:
            tally = self._tallies.setdefault(seq, Tally())
            tally.replays += 1
            tally.last_at = max(tally.last_at, at)
            tally.conflicts += conflict
        room = WAITING_VARIANTS - len(self._variants)
        self._variants += outcome.variants[: max(0, room)]

    def step(self) -> Callable[[sqlite3.Connection], set[str]] | None:
        """The most urgent piece of care, or None."""
        if self._tallies or self._variants:
            return self.flush
        if time.monotonic() >= self._truncate_at:
            self._truncate_at = time.monotonic() + self._every
            return self.truncate if self.wal_bytes() else None
        return None

    def flush(self, db: sqlite3.Connection) -> set[str]:
        """Write the counts and variants that wait, and revive what is dead and was sent again; the targets to wake.
        What cannot be written stays waiting."""
        woken: set[str] = set()
        tallies, self._tallies = self._tallies, {}
        variants, self._variants = self._variants, []
        try:
            db.execute(BEGIN)
            for seq, tally in tallies.items():
                db.execute(COUNT, (seq, tally.replays, tally.last_at, tally.conflicts))
                (source,) = db.execute(SOURCE, (seq,)).fetchone()
                self._books.entries.added(source, "replays", tally.last_at, count=tally.replays)
                if source not in self._routing.keeps_dead:
                    woken |= revive(db, seq, tally.last_at, self._books, self._routing.skipping)
            for seq, a in variants:
                row = (seq, a.body_hash, a.received_at, a.content_type, a.encoding, a.body, seq, VARIANTS)
                db.execute(KEEP_VARIANT, row)
            self._books.save(db)
            db.execute(COMMIT)
        except sqlite3.Error:
            self._tallies = tallies | self._tallies
            self._variants = variants + self._variants
            raise
        return woken

    def shortage(self) -> str:
        """Why nothing more may be accepted: the disk holds less than what must stay free. Empty when it is well."""
        disk = os.statvfs(self._folder)
        free, least = disk.f_bavail * disk.f_frsize, self._least(disk.f_blocks * disk.f_frsize)
        if free >= least:
            return ""
        return (
            f"the disk has {free >> 20} MiB free and {least >> 20} MiB must stay free (store.min_free); free some space"
        )

    def wal_bytes(self) -> int:
        """The size of the write-ahead log."""
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def wants_checkpoint(self) -> bool:
        """Have enough commits been made since the log was last copied back? How many are enough is learned."""
        return (self._books.commits - self._commits) * self._frames >= CHECKPOINT_FRAMES

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy the log back without waiting for anybody; the next commit starts it anew.

        SQLite does not say how long the log is, and its file does not shrink: the frames of each commit are
        estimated from those found at the last checkpoint.
        """
        _busy, frames, _copied = db.execute(PASSIVE).fetchone()
        commits = self._books.commits - self._commits
        if frames > 0 and commits:
            self._frames = max(1.0, (self._frames + frames / commits) / 2)
        self._commits = self._books.commits

    def truncate(self, db: sqlite3.Connection) -> set[str]:
        """Copy the log back and cut it; readers are waited for a moment, then left alone."""
        db.execute(TRUNCATE).fetchall()
        self._commits = self._books.commits
        return set()
