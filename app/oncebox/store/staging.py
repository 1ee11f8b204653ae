"""Staging: what an async handler or operation wants written, kept until it has returned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NoReturn, Protocol, TypeVar

from oncebox.emit import emission
from oncebox.errors import ForbiddenSQL, Staged
from oncebox.model import Arrival, StagedWrites
from oncebox.store import Params, Row

T = TypeVar("T")

LARGEST = 2**63 - 1


class Read(Protocol):
    """How a query function is run on a read-only connection."""

    def __call__(self, query: Callable[[Any], list[Row]], /) -> Awaitable[list[Row]]: ...


class NotYet:
    """The result of a staged statement, which nobody knows yet; looking at it raises Staged."""

    def _refuse(self, *_args: object) -> NoReturn:
        raise Staged(
            "this statement has only been staged and runs when the function has returned; "
            "read with `await db.read(sql, params)`"
        )

    __bool__ = __len__ = __getitem__ = __contains__ = __int__ = __index__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = _refuse
    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Row]:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def __repr__(self) -> str:
        return "<staged: not run yet>"


NOT_YET = NotYet()


class StagedTransaction:
    """The `db` of async functions: writes and emits are staged, and commit together with the mark `done` or a reply."""

    def __init__(self, *, parent: int | None, read: Read, now: Callable[[], int]) -> None:
        self._parent = parent
        self._read = read
        self._now = now
        self._statements: list[tuple[str, tuple[object, ...]] | Arrival] = []
        self._open = True

    def execute(self, sql: str, params: Params = ()) -> NotYet:
        """Stage one statement with a copy of its parameters. Its rows raise Staged."""
        self._stage(_statement(sql, params))
        return NOT_YET

    def executemany(self, sql: str, params: Iterable[Params]) -> NotYet:
        """Stage one statement for each set of parameters."""
        for one in params:
            self._stage(_statement(sql, one))
        return NOT_YET

    def emit(
        self,
        source: str,
        *,
        id: str,
        type: str | None = None,
        body: object = b"",
        headers: dict[str, str] | None = None,
    ) -> NotYet:
        """Stage a new event. Raises EmitError for an id or a body that cannot be kept; the source is judged later."""
        self._stage(emission(source, id, type, body, headers, self._parent, self._now()))
        return NOT_YET

    async def read(self, sql: str, params: Params = ()) -> list[Row]:
        """The rows of a query as committed now; staged writes are not in them."""
        given = tuple(params)
        return await self._read(lambda db: list(db.execute(sql, given).fetchall()))

    def end(self) -> StagedWrites:
        """What was staged; from now on nothing can be."""
        self._open = False
        return StagedWrites(tuple(self._statements))

    def _stage(self, statement: tuple[str, tuple[object, ...]] | Arrival) -> None:
        if not self._open:
            raise ForbiddenSQL("this function has ended; stage all writes before it returns")
        self._statements.append(statement)


def _statement(sql: object, params: Params) -> tuple[str, tuple[object, ...]]:
    if not isinstance(sql, str):
        raise TypeError(f"SQL must be text, not {type(sql).__name__}")
    if isinstance(params, dict):
        raise TypeError("parameters are a sequence in the order of the ?s, not a dict")
    return sql, tuple(_copied(value) for value in params)


def _copied(value: object) -> object:
    """A parameter as it is now. What SQLite could not take is refused here, at the handler's own line."""
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, int) and not -LARGEST - 1 <= value <= LARGEST:
        raise OverflowError(f"{value} is larger than SQLite's integers; store it as text")
    if isinstance(value, str):
        value.encode("utf-8")
    return value
