"""Operation: a Python function that callers have performed once for each key."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from oncebox.duration import seconds
from oncebox.errors import HandlerError
from oncebox.perform.signature import ALLOWED, TRANSACTIONAL, Signature, read_signature

P = ParamSpec("P")
R = TypeVar("R")

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
METHODS = ("POST", "PUT", "PATCH", "DELETE")


class Operation(Generic[P, R]):
    """What `operation` makes of a function; calling it calls the function, so that tests can."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        signature: Signature,
        methods: tuple[str, ...],
        retry_safe: bool,
        public: bool,
        timeout: float,
        concurrency: int,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = name
        self.signature = signature
        self.methods = methods
        self.retry_safe = retry_safe
        self.public = public
        self.timeout = timeout
        self.concurrency = concurrency
        self.place = _place(function)

    @property
    def transactional(self) -> bool:
        """Whether it runs in the writer, in one transaction with its reply."""
        return self.signature.kind == TRANSACTIONAL

    @property
    def description(self) -> str:
        """What the function says of itself."""
        return inspect.getdoc(self.function) or ""

    @property
    def shape(self) -> type[msgspec.Struct] | None:
        """The Struct that the body is read into, if any."""
        return self.signature.shape

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.signature.kind} operation {self.name} at {self.place}>"


Operations = Mapping[str, Operation[..., Any]]


def operation(
    name: str,
    *,
    retry_safe: bool = False,
    public: bool = False,
    timeout: str | float = "30s",
    concurrency: int = 100,
    methods: Sequence[str] = ("POST",),
) -> Callable[[Callable[P, R]], Operation[P, R]]:
    """Have the function performed once for each caller and key that `/do/{name}` is called with. Raises HandlerError.

    `retry_safe`: an attempt that failed or was interrupted may be made again, although it may have acted outside.
    `public` admits callers without a name. `timeout` and `concurrency` bound async and blocking operations; one with a
    transaction runs in the writer, one at a time, and is held to a second.
    """

    def decorate(function: Callable[P, R]) -> Operation[P, R]:
        if isinstance(function, Operation) or not inspect.isroutine(function):
            raise HandlerError(f"operation {name!r}: {function!r} is no plain function; {ALLOWED}")
        try:
            return Operation(
                function,
                name=_name(name),
                signature=read_signature(function),
                methods=_methods(methods),
                retry_safe=bool(retry_safe),
                public=bool(public),
                timeout=_timeout(timeout),
                concurrency=_concurrency(concurrency),
            )
        except ValueError as error:
            raise HandlerError(f"operation {name!r} ({_place(function)}): {error}") from error

    return decorate


def load_operations(modules: Sequence[str]) -> Operations:
    """The operations of handler modules that have been loaded. Raises HandlerError for a name that two of them have."""
    return find_operations([import_module(name) for name in modules])


def find_operations(modules: Sequence[ModuleType]) -> Operations:
    """What the modules' namespaces hold, by name; an object that several modules import counts once."""
    found: dict[str, Operation[..., Any]] = {}
    for module in modules:
        for value in list(vars(module).values()):
            if not isinstance(value, Operation):
                continue
            other = found.setdefault(value.name, value)
            if other is not value:
                raise HandlerError(
                    f'two operations are called "{value.name}": {other.place} and {value.place}; name one of them '
                    "otherwise"
                )
    return found


def _place(function: Callable[..., object]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else "an unknown place"


def _name(name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            'its name cannot be part of a URL here; use lower-case letters, digits, "-" and "_" (at most 64)'
        )
    return name


def _methods(methods: Sequence[str]) -> tuple[str, ...]:
    chosen = (methods,) if isinstance(methods, str) else tuple(methods)
    if not chosen or any(method not in METHODS for method in chosen):
        raise ValueError(f"methods is {methods!r}; it must be some of {', '.join(METHODS)}")
    return tuple(dict.fromkeys(chosen))


def _timeout(timeout: object) -> float:
    if isinstance(timeout, str):
        value = seconds(timeout)
    elif isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise ValueError(f'timeout is {timeout!r}; it must be such as "30s" or a number of seconds')
    else:
        value = float(timeout)
    if not 0 < value <= 86_400:
        raise ValueError("timeout must be more than nothing and at most a day")
    return value


def _concurrency(concurrency: object) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= 10_000:
        raise ValueError(f"concurrency is {concurrency!r}; it must be a whole number from 1 to 10000")
    return concurrency
