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
from oncebox.store.minutes import forget_old
from oncebox.store.reruns import revive
from oncebox.store.routing import Routing
from oncebox.store.statement import BEGIN, COMMIT, own
from oncebox.store.wal import MOST, Wal

VARIANTS = 3
WAITING_VARIANTS = 200
WAITING_BYTES = 16 << 20
WAITING_TALLIES = 100_000
MINUTES, SOON = 3600.0, 3.0

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

    def __init__(
        self, path: Path, books: Books, routing: Routing, *, checkpoint: float, least: Least, wal_max: int = MOST
    ) -> None:
        self.wal = Wal(path, books, wal_max)
        self._path = path
        self._identity = _identity(path)
        self._books = books
        self._routing = routing
        self._folder = path.parent
        self._least = least
        self._every = checkpoint
        self._tallies: dict[int, Tally] = {}
        self._variants: list[tuple[int, Arrival]] = []
        self._variant_bytes = 0
        self._truncate_at = time.monotonic() + checkpoint
        self._minutes_at = time.monotonic() + SOON

    def noticed(self, outcome: Outcome) -> None:
        """Remember replays and differing bodies for the next step; beyond what is kept while the file cannot be
        written, they are only answered."""
        for seq, at, conflict in outcome.replays:
            tally = self._tallies.get(seq)
            if tally is None:
                if len(self._tallies) >= WAITING_TALLIES:
                    continue
                tally = self._tallies[seq] = Tally()
            tally.replays += 1
            tally.last_at = max(tally.last_at, at)
            tally.conflicts += conflict
        for seq, arrival in outcome.variants:
            size = self._variant_bytes + len(arrival.body)
            if len(self._variants) < WAITING_VARIANTS and size <= WAITING_BYTES:
                self._variants.append((seq, arrival))
                self._variant_bytes = size

    def step(self) -> Callable[[sqlite3.Connection], set[str]] | None:
        """The most urgent piece of care, or None. Repeats may come without end: they do not put off what is due."""
        if time.monotonic() >= self._truncate_at:
            self._truncate_at = time.monotonic() + self._every
            if self.wal.bytes():
                return self.truncate
        if time.monotonic() >= self._minutes_at:
            self._minutes_at = time.monotonic() + MINUTES
            return self.forget_minutes
        return self.flush if self._tallies or self._variants else None

    def flush(self, db: sqlite3.Connection) -> set[str]:
        """Write the counts and variants that wait, and revive what is dead and was sent again; the targets to wake.
        What cannot be written stays waiting."""
        woken: set[str] = set()
        tallies, self._tallies = self._tallies, {}
        variants, self._variants = self._variants, []
        variant_bytes, self._variant_bytes = self._variant_bytes, 0
        try:
            db.execute(BEGIN)
            for seq, tally in tallies.items():
                db.execute(COUNT, (seq, tally.replays, tally.last_at, tally.conflicts))
                (source,) = db.execute(SOURCE, (seq,)).fetchone()
                self._books.entries.added(source, "replays", tally.last_at, count=tally.replays)
                if source not in self._routing.keeps_dead:
                    woken |= revive(db, seq, tally.last_at, self._books, self._routing)
            for seq, a in variants:
                row = (seq, a.body_hash, a.received_at, a.content_type, a.encoding, a.body, seq, VARIANTS)
                db.execute(KEEP_VARIANT, row)
            self._books.save(db)
            db.execute(COMMIT)
        except sqlite3.Error:
            self._tallies = tallies | self._tallies
            self._variants = variants + self._variants
            self._variant_bytes += variant_bytes
            raise
        return woken

    def forget_minutes(self, db: sqlite3.Connection) -> set[str]:
        """Delete counts by the minute that no chart shows any more; the rest of them soon."""
        if forget_old(db):
            self._minutes_at = time.monotonic() + SOON
        return set()

    def shortage(self) -> str:
        """Why nothing more may be accepted: the file is not in its place any more, or the disk holds less than what
        must stay free. Empty when it is well."""
        if _identity(self._path) != self._identity:
            return (
                f"{self._path}: was deleted, moved or replaced while it is open, and what is accepted now would go "
                "with it; stop the server, put the right file there, start again"
            )
        disk = os.statvfs(self._folder)
        free, least = disk.f_bavail * disk.f_frsize, self._least(disk.f_blocks * disk.f_frsize)
        if free >= least:
            return ""
        return (
            f"the disk has {free >> 20} MiB free and {least >> 20} MiB must stay free (store.min_free); free some space"
        )

    def wal_bytes(self) -> int:
        """The size of the write-ahead log."""
        return self.wal.bytes()

    def wants_checkpoint(self) -> bool:
        """Have enough commits been made since the log was last copied back?"""
        return self.wal.wants_checkpoint()

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy the log back without waiting for anybody."""
        self.wal.checkpoint(db)

    def truncate(self, db: sqlite3.Connection) -> set[str]:
        """Copy the log back and cut it; readers are waited for a moment, then left alone."""
        self.wal.truncate(db)
        return set()


def _identity(path: Path) -> tuple[int, int]:
    """Which file has this name now; zeros when none has."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino
