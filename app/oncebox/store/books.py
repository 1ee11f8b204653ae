"""Books: the arrival numbers given out and the totals, changed in the same transaction as what they count."""

from __future__ import annotations

import sqlite3
from collections import Counter

from oncebox.store.group import COLUMNS, NUMBER, TOTAL, put

MINUTE = 60_000_000
NOTHING = (None,) * (COLUMNS - 6)

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

    def rows(self) -> list[object]:
        """What changed, as rows of a group; `settled` must follow when they are written."""
        values: list[object] = []
        for (source, what, minute), n in self.entries.items():
            if n:
                values += (TOTAL, source, what, n, None, minute, *NOTHING)
        if self.next_seq != self._saved_seq:
            values += (NUMBER, None, None, self.next_seq, None, None, *NOTHING)
        return values

    def settled(self) -> None:
        """What `rows` gave has been committed."""
        self.commits += 1
        self.entries = Entries()
        self._saved_seq = self.next_seq

    def save(self, db: sqlite3.Connection) -> None:
        """Write what changed; to be called last in every transaction."""
        put(db, self.rows())
        self.settled()

    def forget(self) -> None:
        """The transaction was rolled back: nothing of it is counted, and its numbers stay a gap."""
        self.entries = Entries()
        self._saved_seq = -1
