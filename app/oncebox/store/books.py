"""Books: the arrival numbers given out and the totals, changed in the same transaction as what they count."""

from __future__ import annotations

import sqlite3
from collections import Counter

from oncebox.store.statement import own, rows

MINUTE = 60_000_000
NEXT_SEQ = own("update meta set value = ? where name = 'next_seq'")

Entry = tuple[str, str, int]


class Entries(Counter[Entry]):
    """Changes to the totals that have not been written yet: (source, what, minute) -> difference."""

    def moved(self, source: str, before: str, after: str, now: int, *, count: int = 1) -> None:
        """Deliveries went from one state to another; endings are charted by the minute."""
        self[source, before, 0] -= count
        self[source, after, 0] += count
        if after in ("done", "dead"):
            self[source, after, now // MINUTE] += count

    def added(self, source: str, what: str, now: int, *, count: int = 1) -> None:
        """Something happened that is counted over all and by the minute."""
        self[source, what, 0] += count
        self[source, what, now // MINUTE] += count


class Books:
    """Numbers grow for as long as the file lives; a rolled-back transaction leaves a gap, never a number twice."""

    def __init__(self, next_seq: int) -> None:
        self.next_seq = next_seq
        self.entries = Entries()
        self.commits = 0
        self._saved_seq = next_seq

    def number(self, count: int = 1) -> int:
        """The first of `count` fresh arrival numbers."""
        first = self.next_seq
        self.next_seq += count
        return first

    def save(self, db: sqlite3.Connection) -> None:
        """Write what changed; to be called last in every transaction."""
        self.commits += 1
        if self.next_seq != self._saved_seq:
            db.execute(NEXT_SEQ, (self.next_seq,))
            self._saved_seq = self.next_seq
        changes = [(*entry, n) for entry, n in self.entries.items() if n]
        if changes:
            head, tail = "insert into totals (source, what, minute, n)", "on conflict do update set n = n + excluded.n"
            db.execute(rows(head, 4, len(changes), tail), [value for change in changes for value in change])
        self.entries = Entries()

    def forget(self) -> None:
        """The transaction was rolled back: nothing of it is counted, and its numbers stay a gap."""
        self.entries = Entries()
        self._saved_seq = -1
