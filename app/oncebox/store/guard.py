"""Guard: what handler SQL may not touch: the inbox's own tables, the transaction, the connection's settings."""

from __future__ import annotations

import sqlite3
import time

from oncebox.errors import ForbiddenSQL
from oncebox.store.statement import MARK, own

TABLES = frozenset(
    "meta events payloads erased replies deliveries attempts replays variants refused totals operations reruns acts "
    "paused".split()
)
VIEWS = frozenset(("v_events", "v_deliveries", "raw_events"))
RESERVED = TABLES | VIEWS

READ, WRITES = sqlite3.SQLITE_READ, (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
ON_TABLE = {  # action -> which of its two arguments names the table
    sqlite3.SQLITE_CREATE_TABLE: 0,
    sqlite3.SQLITE_CREATE_VTABLE: 0,
    sqlite3.SQLITE_CREATE_VIEW: 0,
    sqlite3.SQLITE_DROP_TABLE: 0,
    sqlite3.SQLITE_DROP_VTABLE: 0,
    sqlite3.SQLITE_DROP_VIEW: 0,
    sqlite3.SQLITE_CREATE_INDEX: 1,
    sqlite3.SQLITE_DROP_INDEX: 1,
    sqlite3.SQLITE_CREATE_TRIGGER: 1,
    sqlite3.SQLITE_DROP_TRIGGER: 1,
    sqlite3.SQLITE_ALTER_TABLE: 1,
}
NEVER = {
    sqlite3.SQLITE_TRANSACTION: "begin, commit and rollback: the handler's transaction ends with the handler",
    sqlite3.SQLITE_SAVEPOINT: "savepoints: raise an exception to undo what the handler did",
    sqlite3.SQLITE_PRAGMA: "PRAGMA: the connection's settings are the inbox's",
    sqlite3.SQLITE_ATTACH: "ATTACH and VACUUM: everything lives in one file",
    sqlite3.SQLITE_DETACH: "DETACH: everything lives in one file",
    sqlite3.SQLITE_ANALYZE: "ANALYZE: the inbox's query plans are its own",
    sqlite3.SQLITE_REINDEX: "REINDEX: it would hold every sender up",
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

    def _authorize(self, action: int, first: str | None, second: str | None, _db: str | None, inner: str | None) -> int:
        if not self.on:
            return sqlite3.SQLITE_OK
        self.reason = _refusal(action, first or "", second or "", inner or "")
        if self.reason:
            return sqlite3.SQLITE_DENY
        self.reshaped = self.reshaped or action in SHAPES
        return sqlite3.SQLITE_OK


def _refusal(action: int, first: str, second: str, inner: str) -> str:
    if action == READ:
        mine = first.lower() in TABLES and inner.lower() not in VIEWS
        return f"reading {first}: use the views {', '.join(sorted(VIEWS))}" if mine else ""
    if action in WRITES:
        return f"writing to {first}, which belongs to the inbox" if first.lower() in RESERVED else ""
    if action in NEVER:
        return NEVER[action]
    if action in TEMPORARY:
        return "temporary tables, views and triggers: they would outlive the handler and hide the inbox's own"
    if action in ON_TABLE and (first, second)[ON_TABLE[action]].lower() in RESERVED:
        return f"{(first, second)[ON_TABLE[action]]} belongs to the inbox; choose another name"
    if action == sqlite3.SQLITE_FUNCTION and second.lower() == "load_extension":
        return "load_extension: code comes with the handler, not through SQL"
    return ""
