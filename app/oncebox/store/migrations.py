"""Migrations: the file's schema and its version, and how a connection to it is set up."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
from importlib.resources import files
from pathlib import Path

from oncebox.errors import SchemaTooNew, StoreError, Unwritable
from oncebox.store.faults import explained
from oncebox.store.statement import own

VERSION = 1
PAGE_SIZE = 8192
CACHED_STATEMENTS = 1024
# Another program that is writing is waited for: seconds at the start, milliseconds while others wait for the writer.
PATIENCE = 5.0
BUSY = 50
FACTS = frozenset(("next_seq", "instance", "generation", "min_version", "clean"))


def schema() -> str:
    """The text of the schema, as a new file gets it."""
    return files("oncebox.store").joinpath("schema.sql").read_text(encoding="utf-8")


def connect(path: Path, durability: str = "full") -> sqlite3.Connection:
    """The one connection that writes; `durability` is full or normal. Raises StoreError, SchemaTooNew, Unwritable."""
    _refuse_unwritable(path)
    _create_private(path)
    try:
        db = sqlite3.connect(
            path, isolation_level=None, cached_statements=CACHED_STATEMENTS, check_same_thread=False, timeout=PATIENCE
        )
    except sqlite3.Error as error:
        raise explained(path, error, "opened") from error
    try:
        _prepare(db, path, durability)
    except sqlite3.Error as error:
        db.close()
        raise explained(path, error) from error
    except StoreError:
        db.close()
        raise
    return db


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that can only read, and never checkpoints, not even when it is closed."""
    db = sqlite3.connect(f"file:{_quoted(path)}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
    db.execute("pragma query_only = on")
    db.execute("pragma busy_timeout = 1000")
    db.execute("pragma cache_size = -4000")
    return db


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _prepare(db: sqlite3.Connection, path: Path, durability: str) -> None:
    db.execute(f"pragma page_size = {PAGE_SIZE}")
    db.execute("pragma auto_vacuum = incremental")
    version = db.execute("pragma user_version").fetchone()[0]
    if version > 0:
        refuse_foreign(db, path)
    if version > VERSION:
        _refuse_newer(db, path, version)
    if db.execute("pragma journal_mode = wal").fetchone()[0] != "wal":
        raise StoreError(f"{path}: this place cannot hold a write-ahead log; use a local disk")
    db.execute(f"pragma synchronous = {'normal' if durability == 'normal' else 'full'}")
    db.execute("pragma wal_autocheckpoint = 0")
    db.execute("pragma cache_size = -16000")
    db.execute("pragma temp_store = memory")
    db.execute("pragma trusted_schema = off")
    db.execute("pragma secure_delete = off")
    if version == 0:
        _create(db, path)
    db.execute(f"pragma busy_timeout = {BUSY}")


def refuse_foreign(db: sqlite3.Connection, path: Path) -> None:
    """Other programs number their schemas, too. Raises StoreError for a file that has none of the inbox's facts."""
    facts = db.execute("select count(*) from pragma_table_info('meta') where name in ('name', 'value')").fetchone()[0]
    if facts == 2:
        known = {name for (name,) in db.execute("select name from meta")}
        if known >= FACTS:
            return
    raise StoreError(
        f"{path}: is a database of something else, or has lost its table meta; change store.path, or restore a backup"
    )


def _refuse_newer(db: sqlite3.Connection, path: Path, version: int) -> None:
    """A minor release only adds: a newer file says from which version on it can still be used."""
    needed = db.execute("select value from meta where name = 'min_version'").fetchone()
    if needed is None or needed[0] > VERSION:
        raise SchemaTooNew(
            f"{path}: was written by a newer Oncebox (its schema is version {version}, this one knows {VERSION}); "
            "install that version, or restore a backup made before the upgrade"
        )


def _create(db: sqlite3.Connection, path: Path) -> None:
    tables = db.execute("select name from sqlite_schema where type = 'table'").fetchall()
    if tables:
        raise StoreError(
            f"{path}: is a database of something else (it has a table {tables[0][0]!r}); change store.path"
        )
    db.execute(own("begin immediate"))
    for statement in _statements(schema()):
        db.execute(statement)
    facts = {
        "next_seq": 1,
        "instance": secrets.token_hex(8),
        "generation": secrets.token_hex(4),
        "min_version": VERSION,
        "clean": 1,
    }
    db.executemany("insert into meta (name, value) values (?, ?)", facts.items())
    db.execute(f"pragma user_version = {VERSION}")
    db.execute(own("commit"))


def _statements(text: str) -> list[str]:
    found, statement = [], ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            found.append(statement)
            statement = ""
    return found


def _create_private(path: Path) -> None:
    """What senders send is for the owner's eyes only: a new file is made empty, before SQLite has it open, and its
    -wal and -shm get its mode. A file that is there keeps the mode that a person has chosen."""
    with contextlib.suppress(FileExistsError):
        path.touch(0o600, exist_ok=False)


def _refuse_unwritable(path: Path) -> None:
    """Root may write anywhere, so a file or folder without any write permission is taken at its word."""
    for place in (path, path.parent):
        if not place.exists():
            continue
        mode = place.stat().st_mode
        if not os.access(place, os.W_OK) or not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
            raise Unwritable(
                f"{place}: is read-only; Oncebox writes the database and two files beside it, so the folder and the "
                "file must be writable (store.path)"
            )
