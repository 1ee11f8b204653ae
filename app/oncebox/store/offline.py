"""Offline: reading the file from a process of its own."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from oncebox.errors import Locked, SchemaTooNew, StoreError
from oncebox.store.faults import explained
from oncebox.store.lock import read_lock
from oncebox.store.migrations import VERSION, connect_reader, refuse_foreign

T = TypeVar("T")


@contextmanager
def open_offline(path: Path) -> Iterator[Callable[[Callable[[sqlite3.Connection], T]], T]]:
    """A function that runs queries on the file, read-only, each in one transaction.

    Raises Locked while a server has the file: ask that one. Raises StoreError for a file that is missing or foreign.
    """
    lock = read_lock(path)
    if lock is not None and lock.held:
        raise Locked(f"{path}: a server has this file open; ask it instead")
    with open_beside(path) as read:
        yield read


@contextmanager
def open_beside(path: Path) -> Iterator[Callable[[Callable[[sqlite3.Connection], T]], T]]:
    """The same, whether a server has the file or not: for a process of its own that reads a little at a time.

    Raises StoreError for a file that is missing or foreign.
    """
    if path.exists() and not path.is_file():
        raise StoreError(f"{path}: is not a file; name another (store.path)")
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file yet; `oncebox serve` makes it, or name another (store.path)")
    db = _connect(path)
    try:
        yield lambda query: _in_transaction(db, query, path)
    finally:
        db.close()


def _in_transaction(db: sqlite3.Connection, query: Callable[[sqlite3.Connection], T], path: Path) -> T:
    try:
        db.execute("begin")
        try:
            return query(db)
        finally:
            db.execute("rollback")
    except sqlite3.Error as error:
        raise explained(path, error, "read") from error


def _connect(path: Path) -> sqlite3.Connection:
    try:
        db = _open(path)
        try:
            _check(db, path)
        except BaseException:
            db.close()
            raise
        return db
    except sqlite3.Error as error:
        raise explained(path, error, "read") from error


def _open(path: Path) -> sqlite3.Connection:
    """Even a reader makes the two files beside the database; where it may not, nobody else writes there either."""
    if os.access(path.parent, os.W_OK) or Path(f"{path}-wal").exists():
        return connect_reader(path)
    return sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)


def _check(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("pragma user_version").fetchone()[0]
    if version == 0:
        raise StoreError(f"{path}: is a database of something else; change store.path")
    refuse_foreign(db, path)
    (needed,) = db.execute("select value from meta where name = 'min_version'").fetchone()
    if version > VERSION and needed > VERSION:
        raise SchemaTooNew(f"{path}: was written by a newer Oncebox (schema {version}); use that version to read it")
