"""Statement: the text of our own SQL, marked so that a handler's SQL can never be taken for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

MARK = "/*oncebox*/"


def own(sql: str) -> str:
    """A statement of the store's. The connection caches statements by their text, so the mark keeps the ones that
    were prepared without a guard out of reach of handlers, who may not write it."""
    return f"{MARK}{sql}"


@lru_cache(maxsize=1024)
def rows(head: str, columns: int, count: int, tail: str = "") -> str:
    """An insert of `count` rows of `columns` parameters between head and tail."""
    row = f"({','.join('?' * columns)})"
    return own(f"{head} values {','.join([row] * count)} {tail}")


def rounded(count: int) -> int:
    """The next of few sizes: a statement is prepared and kept for each."""
    step = 1 if count <= 8 else 8 if count <= 64 else 16 if count <= 256 else 64
    return count + -count % step


def filled(values: Sequence[T]) -> Sequence[T]:
    """Values of a list, the last one repeated up to one of few sizes."""
    missing = rounded(len(values)) - len(values)
    return [*values, *[values[-1]] * missing] if missing else values


@lru_cache(maxsize=1024)
def members(head: str, count: int, tail: str = "") -> str:
    """A statement with a list of `count` parameters in brackets between head and tail."""
    return own(f"{head} ({','.join('?' * count)}) {tail}")


BEGIN = own("begin immediate")
COMMIT = own("commit")
ROLLBACK = own("rollback")
SAVEPOINT = own("savepoint handler")
RELEASE = own("release handler")
ROLLBACK_TO = own("rollback to handler")
SHAPE = own("savepoint shape")
SHAPED = own("release shape")
UNSHAPE = own("rollback to shape")
FLUSH = own("savepoint flush")
FLUSHED = own("release flush")
