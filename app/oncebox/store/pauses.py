"""Pauses: targets for which nothing is started, by a person or by the inbox, and why."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from oncebox.store.statement import own

LOAD = own("select target, why from paused")
ADD = own("insert into paused (target, at, why) values (?, ?, ?) on conflict (target) do nothing")
REMOVE = own("delete from paused where target = ? returning target")


class Pauses:
    """What the table says, kept in memory because every claim asks: as of the last change that was committed."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}
        self._next: dict[str, str] = {}

    def __contains__(self, target: object) -> bool:
        return target in self._why

    def load(self, db: sqlite3.Connection) -> None:
        """Read the table."""
        self._why = dict(db.execute(LOAD).fetchall())

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Around a transaction, on the writer's thread: what it changes is so when the block has ended well."""
        self._next = self._why
        yield
        self._why = self._next

    def add(self, db: sqlite3.Connection, target: str, why: str, now: int) -> None:
        """Pause a target; an earlier reason stays. To be called while `committing`."""
        db.execute(ADD, (target, now, why))
        self._next = {target: why, **self._next}

    def remove(self, db: sqlite3.Connection, target: str) -> bool:
        """Undo a pause; False if there was none. To be called while `committing`."""
        self._next = {name: why for name, why in self._next.items() if name != target}
        return db.execute(REMOVE, (target,)).fetchone() is not None

    def reasons(self) -> dict[str, str]:
        """Paused targets and why."""
        return dict(self._why)
