"""Signature: what the parameters of an operation say it is, and how it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from oncebox.perform.request import Request
from oncebox.store import Transaction
from oncebox.store.staging import StagedTransaction

TRANSACTIONAL = "transactional"
BLOCKING = "blocking"
ASYNC = "async"
STAGED = "staged"

ALLOWED = (
    "an operation is `def f(request, db)` (in one transaction with its reply), `async def f(request)` or "
    "`async def f(request, db)` (for what acts outside), or `def f(request)` (the same, blocking, in a thread); a "
    "parameter annotated with a msgspec Struct takes the body, in place of `request` or beside it"
)
REQUEST, BODY, DB = "request", "body", "db"

_KINDS = {(False, True): TRANSACTIONAL, (False, False): BLOCKING, (True, False): ASYNC, (True, True): STAGED}
_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NOTHING = inspect.Parameter.empty


class Signature(msgspec.Struct, frozen=True):
    """The kind, the roles of the parameters in their order, and the Struct that the body is read into, if any."""

    kind: str
    roles: tuple[str, ...]
    shape: type[msgspec.Struct] | None

    def arguments(self, request: Request, body: object, db: object) -> list[object]:
        """What the function is called with."""
        given = {REQUEST: request, BODY: body, DB: db}
        return [given[role] for role in self.roles]


def read_signature(function: Callable[..., Any]) -> Signature:
    """Raises ValueError that says what is wrong with it and what is allowed."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(f"a function with `yield` is no operation; {ALLOWED}")
    parameters = _parameters(function)
    if any(p.kind not in _PLAIN or p.default is not _NOTHING for p in parameters):
        raise ValueError(f"its parameters must be plain ones without a default; {ALLOWED}")
    shapes = [p.annotation for p in parameters if _is_shape(p.annotation)]
    if len(shapes) > 1:
        raise ValueError(f"two parameters ({shapes[0].__name__}, {shapes[1].__name__}) take the body; {ALLOWED}")
    rest = [p for p in parameters if not _is_shape(p.annotation)]
    roles = dict(zip((p.name for p in rest), _roles(rest, typed=bool(shapes)), strict=True))
    ordered = tuple(roles.get(p.name, BODY) for p in parameters)
    kind = _KINDS[inspect.iscoroutinefunction(function), DB in ordered]
    return Signature(kind, ordered, shapes[0] if shapes else None)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """With their annotations resolved where that is possible: they may name what only a type checker imports."""
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except Exception:  # noqa: BLE001  # an annotation may be any expression
        return list(inspect.signature(function).parameters.values())


def _is_shape(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct) and annotation is not Request


def _roles(parameters: list[inspect.Parameter], *, typed: bool) -> list[str]:
    """Those that do not take the body: a request, a db, or both in this order."""
    if len(parameters) > 2 or not (parameters or typed):
        raise ValueError(ALLOWED)
    roles = [REQUEST, DB] if len(parameters) == 2 else [DB if _is_db(p) else REQUEST for p in parameters]
    for parameter, role in zip(parameters, roles, strict=True):
        _refuse_other(parameter, role)
    return roles


def _is_db(parameter: inspect.Parameter) -> bool:
    return parameter.annotation in (Transaction, StagedTransaction) or parameter.name == DB


def _refuse_other(parameter: inspect.Parameter, role: str) -> None:
    annotation = parameter.annotation
    fitting = (Request,) if role == REQUEST else (Transaction, StagedTransaction)
    names = tuple(one.__name__ for one in fitting)
    if annotation is _NOTHING or annotation in fitting:
        return
    if isinstance(annotation, str):
        if annotation.rpartition(".")[2].strip("'\"") in names:
            return
        raise ValueError(
            f'the annotation "{annotation}" of {parameter.name} cannot be read when the module is loaded; define or '
            f"import what it names at the top of the module; {ALLOWED}"
        )
    shown = getattr(annotation, "__name__", annotation)
    raise ValueError(f"the parameter {parameter.name} is annotated {shown}, not {' or '.join(names)}; {ALLOWED}")
