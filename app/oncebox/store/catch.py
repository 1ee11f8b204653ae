"""Catch: what a claim reads: rows as the attempts that they start, until there are enough rows, or bytes of bodies."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from oncebox.encoding import decode
from oncebox.headers import Headers
from oncebox.model import Claimed, Event, instant

# Bytes of bodies, as they lie in memory, after which a claim ends: whoever waits for the writer waits until they are
# read, and the process has to hold them.
MOST = 4 << 20
# The place of the body in a row.
BODY = 14

GONE = "the body is gone: it was pruned or erased before this delivery was made"

Row = tuple[Any, ...]


class Gone(ValueError):
    """Nothing is left of an event but its row."""


_pairs = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode


def unreadable(error: Exception) -> str:
    """Why a stored event cannot be delivered."""
    return str(error) if isinstance(error, Gone) else f"the stored event cannot be read: {error}"


class Catch:
    """What one claim has found so far: as many rows as are wanted, or as many bytes; and which cannot be read (seq,
    target, source, why), which do not count as rows."""

    def __init__(self, limit: int, most: int, instance: str) -> None:
        self.found: list[Claimed] = []
        self.unreadable: list[tuple[int, str, str, str]] = []
        self._limit = limit
        self._left = most
        self._instance = instance

    @property
    def room(self) -> int:
        """How many more rows."""
        return self._limit - len(self.found) if self._left > 0 else 0

    @property
    def cut(self) -> bool:
        """It is the bytes that were too many, not the rows."""
        return self._left <= 0 and len(self.found) < self._limit

    def haul(self, cursor: sqlite3.Cursor) -> int:
        """Read rows until there is no more room for bytes; how many of them can be delivered. A body is read from the
        file with its row, and no earlier."""
        found, left, instance = self.found, self._left, self._instance
        before = len(found)
        for row in cursor:
            try:
                one = claimed(row, instance)
            except (ValueError, msgspec.MsgspecError) as error:
                self.unreadable.append((*row[:3], unreadable(error)))
                left -= len(row[BODY] or b"")
            else:
                found.append(one)
                left -= one.weight
            if left <= 0:
                break
        cursor.close()
        self._left = left
        return len(found) - before


def claimed(row: Row, instance: str) -> Claimed:
    """A row of the claim as the attempt that it starts. Raises ValueError or MsgspecError for what cannot be read."""
    seq, target, source, run, attempts, failures, suspect, id, type, at, parent, *body, again, lane = row
    headers, kind, encoding, raw = body
    if headers is None:
        raise Gone(GONE)
    event = Event(
        seq=seq,
        source=source,
        id=id,
        type=type,
        received_at=instant(at),
        headers=Headers(_pairs(headers) if headers else ()),
        content_type=kind or "",
        body=decode(raw, encoding) if encoding else raw,
        raw=raw,
        run=run,
        attempt=attempts + 1,
        parent=parent,
        instance=instance,
        again=bool(again),
    )
    return Claimed(event, target, run, attempts + 1, failures, suspect, encoding, lane > 0)
