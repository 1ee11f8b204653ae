"""Pauses: targets for which nothing is started, by a person or by the inbox, and why."""

from __future__ import annotations

import sqlite3

from oncebox.store.statement import own

LOAD = own("select target, why from paused")
ADD = own("insert into paused (target, at, why) values (?, ?, ?) on conflict (target) do nothing")
REMOVE = own("delete from paused where target = ? returning target")


class Pauses:
    """What the table says, kept in memory because every claim asks."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def __contains__(self, target: object) -> bool:
        return target in self._why

    def load(self, db: sqlite3.Connection) -> None:
        """Read the table."""
        self._why = dict(db.execute(LOAD).fetchall())

    def add(self, db: sqlite3.Connection, target: str, why: str, now: int) -> None:
        """Pause a target; an earlier reason stays."""
        db.execute(ADD, (target, now, why))
        self._why.setdefault(target, why)

    def remove(self, db: sqlite3.Connection, target: str) -> bool:
        """Undo a pause; False if there was none."""
        self._why.pop(target, None)
        return db.execute(REMOVE, (target,)).fetchone() is not None

    def reasons(self) -> dict[str, str]:
        """Paused targets and why."""
        return dict(self._why)
