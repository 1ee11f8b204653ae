"""Options: how a file is held."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


def nothing(_disk_bytes: int) -> int:
    """No space has to stay free."""
    return 0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is held. `least` says how much of a disk of so many bytes must stay free, `wal_max` from how many
    bytes on the write-ahead log is reported; times are seconds."""

    name: str | None = None
    queue: int = 1000
    checkpoint: float = 30.0
    sync_timeout: float = 1.0
    durability: str = "full"
    least: Callable[[int], int] = nothing
    wal_max: int = 64 << 20


DEFAULTS = Options()
