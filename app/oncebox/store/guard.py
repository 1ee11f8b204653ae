"""Guard: what handler SQL may not touch: the inbox's own tables, the transaction, the connection's settings."""

from __future__ import annotations

import sqlite3
import time

from oncebox.errors import ForbiddenSQL
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
    sqlite3.SQLITE_PRAGMA: "PRAGMA: the connection's settings are the inbox's",
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
SHAPES = frozenset((sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_ALTER_TABLE))
REFERENCES = own(
    "select m.name, f.\"table\" from sqlite_schema m join pragma_foreign_key_list(m.name) f where m.type = 'table'"
)
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
        self._db = db
        db.set_authorizer(self._authorize)
        db.set_progress_handler(self._overdue, STEPS)

    def check_text(self, sql: str) -> None:
        """Our own statements are cached without a guard: their mark may not be written by anybody else."""
        if MARK in sql:
            raise ForbiddenSQL(f"handler SQL may not contain {MARK}")

    def check_shape(self) -> None:
        """After a table was made or changed: none may refer to ours, or pruning would be stopped by it."""
        self.reshaped = False
        for table, other in self._db.execute(REFERENCES).fetchall():
            if other.lower() in RESERVED:
                raise ForbiddenSQL(
                    f"table {table} refers to {other}, which belongs to the inbox; keep event.seq or event.id in a "
                    "plain column instead"
                )

    def _overdue(self) -> int:
        return int(self.on and time.monotonic() > self.deadline)

    def _authorize(self, action: int, first: str | None, second: str | None, db: str | None, inner: str | None) -> int:
        if not self.on:
            return sqlite3.SQLITE_OK
        temporary = action in SHAPING and "temp" in (db, first if action == sqlite3.SQLITE_ALTER_TABLE else "")
        self.reason = HIDING if temporary else _refusal(action, first or "", second or "", inner or "")
        if self.reason:
            return sqlite3.SQLITE_DENY
        self.reshaped = self.reshaped or action in SHAPES
        return sqlite3.SQLITE_OK


def _refusal(action: int, first: str, second: str, inner: str) -> str:
    """Why an action is not for handlers; empty when it is."""
    if action in NEVER:
        return NEVER[action]
    if action in TEMPORARY:
        return "temporary tables, views and triggers: they would outlive the handler and hide the inbox's own"
    return _touches_ours(action, first.lower(), second.lower(), inner.lower())


def _touches_ours(action: int, first: str, second: str, inner: str) -> str:
    why = ""
    if action == READ and first in TABLES and inner not in VIEWS:
        why = f"the table {first}: use the views {', '.join(sorted(VIEWS))}"
    elif action in WRITES and first in RESERVED:
        why = f"writes to {first}, which belongs to the inbox"
    elif first == "sqlite_sequence" and (action == sqlite3.SQLITE_INSERT or second == "seq") and action != READ:
        why = "writes to sqlite_sequence: its numbers are the inbox's, too"
    elif action in SHAPING and (first in RESERVED or second in RESERVED):
        why = f"the name {first if first in RESERVED else second}, which belongs to the inbox"
    elif action == sqlite3.SQLITE_REINDEX and _is_our_index(first):  # `create index` asks for its own, too
        why = f"REINDEX of {first}, which belongs to the inbox"
    elif action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        why = "load_extension: code comes with the handler, not through SQL"
    return why


def _is_our_index(name: str) -> bool:
    stem = name.removeprefix("sqlite_autoindex_")
    return any(stem.startswith(f"{table}_") for table in TABLES)
