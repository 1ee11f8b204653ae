"""Faults: what SQLite's error codes mean for those who wait, and what a person can do about them."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

from oncebox.errors import StoreError, Unwritable

DISK = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
PERMISSION = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
ADVICE = {
    "SQLITE_FULL": "the disk is full: free some space",
    "SQLITE_IOERR": "the disk or its file system fails: look into the system's log, then mend it",
    "SQLITE_READONLY": "check the permissions of the database, of its -wal and -shm, and of their folder",
    "SQLITE_CANTOPEN": "check that the folder is there, and the permissions of the database, its -wal and its -shm",
    "SQLITE_PERM": "check the permissions of the database, of its -wal and -shm, and of their folder",
    "SQLITE_BUSY": "another program is writing to it: end that one first",
    "SQLITE_LOCKED": "another program is writing to it: end that one first",
    "SQLITE_CORRUPT": "it is damaged: put it aside and restore a backup",
    "SQLITE_NOTADB": "it is not an SQLite database: change store.path, or restore a backup",
}


def error_name(error: BaseException) -> str:
    """SQLite's name of an error; empty for any other."""
    return getattr(error, "sqlite_errorname", "") if isinstance(error, sqlite3.Error) else ""


def is_busy(error: BaseException) -> bool:
    """Another program holds the file; it will let go."""
    return error_name(error).startswith("SQLITE_BUSY")


def is_of_the_disk(error: BaseException) -> bool:
    """The file cannot be written now; doing it again with less would not help."""
    return is_busy(error) or error_name(error).startswith(DISK)


def is_refused(error: BaseException) -> bool:
    """The disk does not take it; whether another program holds the file has nothing to do with that."""
    return is_of_the_disk(error) and not is_busy(error)


def advice(error: BaseException) -> str:
    """What a person can do about an error of SQLite's."""
    name = error_name(error)
    found = (text for prefix, text in ADVICE.items() if name.startswith(prefix))
    return next(found, "is it a file of Oncebox (store.path), and whole?")


def explained(path: Path, error: sqlite3.Error, what: str = "used") -> StoreError:
    """An error of SQLite's about this file as one that names the culprit and the mend."""
    if not error_name(error).startswith(PERMISSION):
        return StoreError(f"{path}: cannot be {what} ({error}); {advice(error)}")
    culprit = _culprit(path)
    if culprit is not None:
        return Unwritable(
            f"{culprit}: cannot be {what}; it belongs to {path.name}. While nothing has the database open, make it a "
            "file that this user may read and write, and never remove a -wal: it may hold accepted events"
        )
    return Unwritable(f"{path}: cannot be {what} ({error}); {advice(error)}")


def _culprit(path: Path) -> Path | None:
    """Which of the two files beside the database is no file, or may not be written."""
    for beside in (Path(f"{path}-wal"), Path(f"{path}-shm")):
        try:
            mode = beside.stat().st_mode
        except FileNotFoundError:
            continue
        except OSError:
            return beside
        if not stat.S_ISREG(mode) or not mode & WRITABLE or not os.access(beside, os.R_OK | os.W_OK):
            return beside
    return None
