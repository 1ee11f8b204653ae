"""Faults: what SQLite's error codes mean for those who wait."""

from __future__ import annotations

import sqlite3

DISK = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")


def error_name(error: BaseException) -> str:
    """SQLite's name of an error; empty for any other."""
    return getattr(error, "sqlite_errorname", "") if isinstance(error, sqlite3.Error) else ""


def is_busy(error: BaseException) -> bool:
    """Another program holds the file; it will let go."""
    return error_name(error).startswith("SQLITE_BUSY")


def is_of_the_disk(error: BaseException) -> bool:
    """The file cannot be written now; doing it again with less would not help."""
    return is_busy(error) or error_name(error).startswith(DISK)
