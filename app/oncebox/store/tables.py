"""Tables: those that handlers made, read to be copied, a short piece at a time. Reads only."""

from __future__ import annotations

import sqlite3
from difflib import get_close_matches
from typing import Any

import msgspec

from oncebox.errors import StoreError
from oncebox.store.guard import RESERVED
from oncebox.store.statement import own

NAMES = own("select name from sqlite_schema where type = 'table' and name not like 'sqlite\\_%' escape '\\'")
SHAPE = own(
    "select sql from sqlite_schema where tbl_name = ? and type in ('table', 'index') and sql is not null "
    "order by type desc"
)
COLUMNS = own("select name, pk from pragma_table_xinfo(?) where hidden = 0 order by cid")
KIND = own("select type, wr from pragma_table_list(?) where schema = 'main'")
ROWIDS = ("rowid", "_rowid_", "oid")

Row = tuple[Any, ...]


class Table(msgspec.Struct, frozen=True):
    """How a table is made anew (its indexes too, no triggers), and how it is read and written."""

    name: str
    statements: tuple[str, ...]
    first: str
    following: str
    insert: str
    keys: int


def table(db: sqlite3.Connection, name: str) -> Table:
    """One of the handlers' tables. Raises StoreError for one that is not there or belongs to the inbox."""
    names = [found for (found,) in db.execute(NAMES) if found not in RESERVED]
    if name not in names:
        close = get_close_matches(name, names, 1)
        hint = f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(sorted(names)) or 'none'}"
        raise StoreError(f'there is no table "{name[:80]}" of the handlers; {hint}')
    kind, without_rowid = db.execute(KIND, (name,)).fetchone()
    if kind != "table":
        raise StoreError(f'"{name}" is a {kind} table; only ordinary ones can be copied')
    columns = db.execute(COLUMNS, (name,)).fetchall()
    keys = _keys(columns, without_rowid=bool(without_rowid))
    listed = ", ".join(_quoted(column) for column, _ in columns)
    select, key = f"select {', '.join(keys)}, {listed} from {_quoted(name)}", ", ".join(keys)
    marks = ", ".join("?" * len(keys))
    return Table(
        name=name,
        statements=tuple(own(sql) for (sql,) in db.execute(SHAPE, (name,))),
        first=own(f"{select} order by {key} limit ?"),
        following=own(f"{select} where ({key}) > ({marks}) order by {key} limit ?"),
        insert=own(f"insert into {_quoted(name)} ({listed}) values ({', '.join('?' * len(columns))})"),
        keys=len(keys),
    )


def rows(db: sqlite3.Connection, one: Table, after: Row | None, limit: int) -> tuple[list[Row], Row | None]:
    """The next rows behind a key, and the key to go on behind; None when these were the last."""
    if after is None:
        found = db.execute(one.first, (limit,)).fetchall()
    else:
        found = db.execute(one.following, (*after, limit)).fetchall()
    last = found[-1][: one.keys] if len(found) == limit else None
    return [row[one.keys :] for row in found], last


def _keys(columns: list[tuple[str, int]], *, without_rowid: bool) -> list[str]:
    """What a table is in order by: its primary key, or the hidden number of its rows."""
    if without_rowid:
        return [_quoted(column) for column, pk in sorted(columns, key=lambda one: one[1]) if pk]
    named = {column.lower() for column, _ in columns}
    return [next((rowid for rowid in ROWIDS if rowid not in named), ROWIDS[0])]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
