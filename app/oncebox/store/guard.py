"""Guard: what handler SQL may not touch: the inbox's own tables, the transaction, the connection's settings."""

from __future__ import annotations

import sqlite3
import time
from functools import cache

from oncebox.errors import ForbiddenSQL
from oncebox.store.migrations import schema
from oncebox.store.statement import MARK, own

TABLES = frozenset(
    (
        *("meta", "events", "payloads", "erased", "replies", "deliveries", "attempts", "replays"),
        *("variants", "refused", "totals", "operations", "reruns", "acts", "paused"),
    )
)
VIEWS = frozenset(("v_events", "v_deliveries", "raw_events"))
RESERVED = TABLES | VIEWS | {"arriving"}

READ, WRITES = sqlite3.SQLITE_READ, (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
SHAPING = frozenset(
    (
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_VTABLE,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_VTABLE,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TRIGGER,
        sqlite3.SQLITE_ALTER_TABLE,
    )
)
NEVER = {
    sqlite3.SQLITE_TRANSACTION: "begin, commit and rollback: the handler's transaction ends with the handler",
    sqlite3.SQLITE_SAVEPOINT: "savepoints: raise an exception to undo what the handler did",
    sqlite3.SQLITE_ATTACH: "ATTACH and VACUUM: everything lives in one file",
    sqlite3.SQLITE_DETACH: "DETACH: everything lives in one file",
    sqlite3.SQLITE_ANALYZE: "ANALYZE: the inbox's query plans are its own",
}
TEMPORARY = frozenset(
    (
        sqlite3.SQLITE_CREATE_TEMP_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_VIEW,
        sqlite3.SQLITE_DROP_TEMP_INDEX,
        sqlite3.SQLITE_DROP_TEMP_TABLE,
        sqlite3.SQLITE_DROP_TEMP_TRIGGER,
        sqlite3.SQLITE_DROP_TEMP_VIEW,
    )
)
HIDING = "temporary tables, views and triggers: they would outlive the handler and hide the inbox's own"
SHAPES = frozenset((sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_ALTER_TABLE))
# With these SQLite itself writes to its table of used numbers.
RENUMBERS = frozenset((sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_ALTER_TABLE))
REFERENCES = own(
    "select m.name, f.\"table\" from sqlite_schema m join pragma_foreign_key_list(m.name) f where m.type = 'table'"
)
# Virtual tables that keep to tables of their own; others reach into the file's pages or run code.
MODULES = frozenset(("fts5", "fts5vocab", "rtree", "rtree_i32"))
# What these ask for by themselves; it changes nothing.
HARMLESS = frozenset(("data_version", "page_size"))
PAGES = frozenset(("sqlite_dbpage", "sqlite_dbdata", "sqlite_dbptr"))
FUNCTIONS = {
    "load_extension": "load_extension: code comes with the handler, not through SQL",
    "fts3_tokenizer": "fts3_tokenizer: code comes with the handler, not through SQL; fts5 has tokenizers",
}
VIRTUAL = own("select exists (select 1 from sqlite_schema where type = 'table' and rootpage = 0)")
STEPS = 20_000


class Guard:
    """One authorizer and one progress handler, installed once; `on` only while a handler's statement runs.

    Installing an authorizer for each call would prepare every statement anew.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.on = False
        self.deadline = float("inf")
        self.reason = ""
        self.reshaped = False
        self.renaming = False
        self._db = db
        self._shown = _shown(db)
        self.virtual = self._has_virtual()
        db.set_authorizer(self._authorize)
        db.set_progress_handler(self._overdue, STEPS)

    def check_text(self, sql: str) -> None:
        """Our own statements are cached without a guard: their mark may not be written by anybody else."""
        if MARK in sql:
            raise ForbiddenSQL(f"handler SQL may not contain {MARK}")

    def watch(self) -> tuple[bool, str, bool]:
        """From now on a handler's statement runs; what was before is for `rest`, since one may run within another."""
        before = self.on, self.reason, self.renaming
        self.on, self.reason, self.renaming = True, "", False
        return before

    def rest(self) -> tuple[bool, str, bool]:
        """From now on what runs is the store's own."""
        before = self.on, self.reason, self.renaming
        self.on = False
        return before

    def resume(self, before: tuple[bool, str, bool]) -> None:
        """As it was before `watch` or `rest`."""
        self.on, self.reason, self.renaming = before

    def check_shape(self) -> None:
        """After a table was made or changed: none may refer to ours, or pruning would be stopped by it."""
        if not self.reshaped:
            return
        self.reshaped = False
        self.virtual = self.virtual or self._has_virtual()
        for table, other in self._db.execute(REFERENCES).fetchall():
            if other.lower() in RESERVED:
                raise ForbiddenSQL(
                    f"table {table} refers to {other}, which belongs to the inbox; keep event.seq or event.id in a "
                    "plain column instead"
                )

    def _has_virtual(self) -> bool:
        return bool(self._db.execute(VIRTUAL).fetchone()[0])

    def _overdue(self) -> int:
        return int(self.on and time.monotonic() > self.deadline)

    def _authorize(self, action: int, first: str | None, second: str | None, db: str | None, inner: str | None) -> int:
        if not self.on:
            return sqlite3.SQLITE_OK
        temporary = action in SHAPING and "temp" in (db, first if action == sqlite3.SQLITE_ALTER_TABLE else "")
        if action == READ and (inner or "") in VIEWS and (inner, first, second) in self._shown:
            return sqlite3.SQLITE_OK
        self.renaming = self.renaming or action in RENUMBERS
        reason = HIDING if temporary else _refusal(action, first or "", second or "")
        if first == "sqlite_sequence" and action in WRITES and not self.renaming:
            reason = "writes to sqlite_sequence: its numbers are the inbox's, too"
        if reason:
            self.reason = reason
            return sqlite3.SQLITE_DENY
        self.reshaped = self.reshaped or action in SHAPES
        return sqlite3.SQLITE_OK


@cache
def own_indexes() -> frozenset[str]:
    """The names of the inbox's own indexes; nobody else's may be refused for looking like one of them."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(schema())
        return frozenset(name for (name,) in db.execute("select name from sqlite_schema where type = 'index'"))
    finally:
        db.close()


def _shown(db: sqlite3.Connection) -> frozenset[tuple[str, str, str]]:
    """What the views read of our tables, column by column. A `with` clause may bear a view's name: it sees no more."""
    seen: set[tuple[str, str, str]] = set()

    def look(action: int, first: str | None, second: str | None, _db: str | None, inner: str | None) -> int:
        if action == READ and inner in VIEWS:
            seen.add((inner, first or "", second or ""))
        return sqlite3.SQLITE_OK

    db.set_authorizer(look)
    for view in VIEWS:
        db.execute(own(f"explain select * from {view}")).fetchall()
    return frozenset(seen)


def _refusal(action: int, first: str, second: str) -> str:
    """Why an action is not for handlers; empty when it is."""
    if action in NEVER:
        return NEVER[action]
    if action in TEMPORARY:
        return HIDING
    if action == sqlite3.SQLITE_PRAGMA and (first.lower() not in HARMLESS or second):
        return "PRAGMA: the connection's settings are the inbox's"
    if action == sqlite3.SQLITE_CREATE_VTABLE and second.lower() not in MODULES:
        return f"virtual tables of {second}: there are {', '.join(sorted(MODULES))}"
    if action == sqlite3.SQLITE_FUNCTION and second.lower() in FUNCTIONS:
        return FUNCTIONS[second.lower()]
    return _touches_ours(action, first.lower(), second.lower())


def _touches_ours(action: int, first: str, second: str) -> str:
    why = ""
    if action == READ and first in TABLES:
        why = f"the table {first}: use the views {', '.join(sorted(VIEWS))}"
    elif action in WRITES and first in RESERVED:
        why = f"writes to {first}, which belongs to the inbox"
    elif first in PAGES:
        why = f"{first}: the pages of the file are the inbox's"
    elif action in SHAPING and (first in RESERVED or second in RESERVED):
        why = f"the name {first if first in RESERVED else second}, which belongs to the inbox"
    elif action == sqlite3.SQLITE_REINDEX and first in own_indexes():  # `create index` asks for its own, too
        why = f"REINDEX of {first}, which belongs to the inbox"
    return why
