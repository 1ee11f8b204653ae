"""Token: the admin token that is made when none is configured, in a file beside the database."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from oncebox.errors import ConfigError, Unwritable

LONGEST = 4096


def token_path(database: Path) -> Path:
    """`<db>.token` beside the real file, whatever name the database was reached by."""
    real = Path(os.path.realpath(database))
    return real.with_name(real.name + ".token")


def read_token(database: Path) -> str | None:
    """The token that was made for this database; None if there is none, or it is not ours to read."""
    try:
        fd = os.open(token_path(database), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(fd, LONGEST).decode("utf-8", "replace").strip() or None
    finally:
        os.close(fd)


def ensure_token(database: Path) -> str:
    """The token of this database, made now if there is none: whole or not at all, for the owner's eyes only.

    Raises Unwritable where it cannot be written, ConfigError where its file is empty.
    """
    path = token_path(database)
    if not path.exists():
        try:
            _make(path)
        except OSError as error:
            raise Unwritable(
                f"{path}: the admin token cannot be written ({error.strerror}); make the folder writable, or configure "
                "[tokens]"
            ) from error
    token = read_token(database)
    if token is None:
        raise ConfigError(f"{path}: holds no token that can be read; remove the file to get a new one, or set [tokens]")
    return token


def _make(path: Path) -> None:
    """A link is made in one step and never over an existing file, so two starts agree on one token."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{secrets.token_urlsafe(32)}\n".encode())
        os.fsync(fd)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.close(fd)
        draft.unlink()
