"""Acts: what people did, and by whose token."""

from __future__ import annotations

import sqlite3

import msgspec

from oncebox.store.statement import own

# The newest ones are kept; nothing that people do comes near it, a machine that tries passwords does.
MOST = 100_000
EVERY = 1_000

ADD = own("insert into acts (at, who, what, detail) values (?, ?, ?, ?) returning n")
TRIM = own("delete from acts where n <= ?")
LIST = own("select n, at, who, what, detail from acts where n < ? order by n desc limit ?")


class Act(msgspec.Struct, frozen=True):
    """Something that somebody did."""

    n: int
    at: int
    who: str
    what: str
    detail: str


def act(db: sqlite3.Connection, who: str, what: str, detail: str, at: int) -> None:
    """Record what somebody did, in the transaction that does it. The newest 100,000 are kept."""
    (n,) = db.execute(ADD, (at, who, what, detail)).fetchone()
    if n % EVERY == 0:
        db.execute(TRIM, (n - MOST,))


def list_acts(db: sqlite3.Connection, before: int, limit: int) -> list[Act]:
    """The newest acts with numbers below `before`."""
    return [Act(*row) for row in db.execute(LIST, (before, limit))]
