"""Refusals: requests that were turned away, in a ring: bounded per source, in bytes and in age."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence

import msgspec

from oncebox.model import Refused
from oncebox.store.acts import act
from oncebox.store.books import Books
from oncebox.store.statement import own

PER_SOURCE = 200
TOTAL_BYTES = 16 << 20
AGE = 7 * 86_400 * 1_000_000

KEEP = own("insert into refused (source, at, slug, detail, method, url, headers, body) values (?, ?, ?, ?, ?, ?, ?, ?)")
TRIM_SOURCE = own(
    "delete from refused where source = ? and n <= "
    "(select n from refused where source = ? order by n desc limit 1 offset ?)"
)
TRIM_AGE = own("delete from refused where at < ?")
SIZES = own("select n, source, length(body) + length(headers) + length(url) from refused order by n")
REMOVE = own("delete from refused where n = ?")
LOAD = own("select source, at, slug, detail, method, url, headers, body from refused where n = ?")
WAITING = own("select n from refused where source = ? and accepted_at is null order by n")
ACCEPTED = own("update refused set accepted_at = coalesce(accepted_at, ?) where n = ?")


def keep(
    db: sqlite3.Connection, refused: Sequence[Refused], counts: Mapping[tuple[str, str], int], now: int, books: Books
) -> None:
    """Add to the ring, cut it back to its bounds, and count every refusal, kept or not."""
    for r in refused:
        row = (r.source, r.at, r.slug, r.detail, r.method, r.url, msgspec.json.encode(r.headers), r.body)
        db.execute(KEEP, row)
    for source in {r.source for r in refused}:
        db.execute(TRIM_SOURCE, (source, source, PER_SOURCE))
    db.execute(TRIM_AGE, (now - AGE,))
    _trim_bytes(db)
    for (source, slug), count in counts.items():
        books.entries.added(source, f"refused:{slug}", now, count=count)


def load(db: sqlite3.Connection, n: int) -> Refused | None:
    """One refused request, as it was kept."""
    row = db.execute(LOAD, (n,)).fetchone()
    if row is None:
        return None
    *facts, headers, body = row
    pairs = msgspec.json.decode(headers, type=tuple[tuple[str, str], ...])
    names = ("source", "at", "slug", "detail", "method", "url")
    return Refused(**dict(zip(names, facts, strict=True)), headers=pairs, body=body)


def waiting(db: sqlite3.Connection, source: str) -> list[int]:
    """The numbers of a source's refused requests that have not been accepted since, oldest first."""
    return [n for (n,) in db.execute(WAITING, (source,))]


def accepted(db: sqlite3.Connection, n: int, at: int, who: str, detail: str) -> None:
    """Mark a refused request as accepted after all, and record who did it."""
    db.execute(ACCEPTED, (at, n))
    act(db, who, "refused accepted", detail, at)


def _trim_bytes(db: sqlite3.Connection) -> None:
    """The oldest of the source that holds most goes first, so that a flood at one pushes out no other's."""
    kept: dict[str, deque[tuple[int, int]]] = defaultdict(deque)
    held: Counter[str] = Counter()
    for n, source, size in db.execute(SIZES):
        kept[source].append((n, size))
        held[source] += size
    excess = held.total() - TOTAL_BYTES
    while excess > 0:
        ((most, _),) = held.most_common(1)
        n, size = kept[most].popleft()
        db.execute(REMOVE, (n,))
        held[most] -= size
        excess -= size
