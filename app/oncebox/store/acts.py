"""Acts: what people did, and by whose token."""

from __future__ import annotations

import sqlite3

import msgspec

from oncebox.store.statement import own

ADD = own("insert into acts (at, who, what, detail) values (?, ?, ?, ?)")
LIST = own("select n, at, who, what, detail from acts where n < ? order by n desc limit ?")


class Act(msgspec.Struct, frozen=True):
    """Something that somebody did."""

    n: int
    at: int
    who: str
    what: str
    detail: str


def act(db: sqlite3.Connection, who: str, what: str, detail: str, at: int) -> None:
    """Record what somebody did, in the transaction that does it."""
    db.execute(ADD, (at, who, what, detail))


def list_acts(db: sqlite3.Connection, before: int, limit: int) -> list[Act]:
    """The newest acts with numbers below `before`."""
    return [Act(*row) for row in db.execute(LIST, (before, limit))]
