"""Handler: a Python function that events are delivered to. Its signature says what kind it is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from oncebox.drain.retry import RetryPolicy, policy, span
from oncebox.duration import rate as per_second
from oncebox.errors import HandlerError
from oncebox.pointer import canonical, parse
from oncebox.route import Extractor, Route

P = ParamSpec("P")
R = TypeVar("R")

TRANSACTIONAL = "transactional"
BLOCKING = "blocking"
ASYNC = "async"
STAGED = "staged"

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
ALLOWED = (
    "a handler is `def f(event, db)` (transactional), `def f(event)` (blocking), "
    "`async def f(event)` or `async def f(event, db)`"
)
SETUP_ALLOWED = "a setup is `def f(db)`"

_KINDS = {(False, 2): TRANSACTIONAL, (False, 1): BLOCKING, (True, 1): ASYNC, (True, 2): STAGED}


class Handler(Generic[P, R]):
    """What `on` makes of a function; calling it calls the function, so that tests can."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str,
        kind: str,
        route: Route,
        timeout: float,
        concurrency: int,
        rate: float | None,
        retry: RetryPolicy,
    ) -> None:
        update_wrapper(self, function)
        self.function = function
        self.name = name
        self.kind = kind
        self.route = route
        self.timeout = timeout
        self.concurrency = concurrency
        self.rate = rate
        self.retry = retry
        self.place = place(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.kind} handler {self.name} at {self.place}>"


class Setup(Generic[P, R]):
    """What `setup` makes of a function: it is run at every start, in one transaction."""

    def __init__(self, function: Callable[P, R]) -> None:
        update_wrapper(self, function)
        self.function = function
        self.place = place(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<setup at {self.place}>"


def on(
    source: str,
    *,
    type: str = "*",
    where: Mapping[str, object] | None = None,
    name: str | None = None,
    ordered_by: str | Extractor | None = None,
    timeout: str | float = "30s",
    concurrency: int = 4,
    rate: str | float | None = None,
    retry: Mapping[str, object] | RetryPolicy | None = None,
) -> Callable[[Callable[P, R]], Handler[P, R]]:
    """Deliver the events of a source (a glob, as is `type`) to the function. Raises HandlerError.

    `timeout`, `concurrency` and `rate` bound blocking and async handlers; a transactional one runs in the writer, one
    at a time, and is held to a second.
    """

    if callable(source):
        raise HandlerError(
            f'{_called(source)} ({place(source)}): on is written with the source in parentheses, such as @on("stripe")'
        )

    def decorate(function: Callable[P, R]) -> Handler[P, R]:
        called = _named(function, ALLOWED)
        kind = _kind(function, called)
        try:
            return Handler(
                function,
                name=_name(called if name is None else name),
                kind=kind,
                route=_route(source, type, where, ordered_by, called if name is None else name),
                timeout=_timeout(timeout),
                concurrency=_concurrency(concurrency),
                rate=_rate(rate, kind),
                retry=retry if isinstance(retry, RetryPolicy) else policy(retry or {}),
            )
        except (ValueError, AttributeError) as error:
            raise HandlerError(f"{called} ({place(function)}): {error}") from error

    return decorate


def setup(function: Callable[P, R]) -> Setup[P, R]:
    """Run the function at every start, in one transaction; it must be repeatable. Raises HandlerError."""
    called = _named(function, SETUP_ALLOWED)
    if _is_async(function) or _count(function) != 1:
        raise HandlerError(f"{called} ({place(function)}) is `{_shape(function)}`; {SETUP_ALLOWED}")
    return Setup(function)


def place(function: Callable[..., object]) -> str:
    """Where a function was written: file and line."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else "an unknown place"


def _named(function: object, allowed: str) -> str:
    if isinstance(function, (Handler, Setup)):
        raise HandlerError(f"{function!r} is decorated twice; give each source a function of its own, or use a glob")
    if not inspect.isroutine(function):
        raise HandlerError(f"{function!r} is no function; {allowed}")
    within = function.__qualname__.rpartition(".")[0]
    if within and not within.endswith("<locals>"):
        raise HandlerError(
            f"{function.__qualname__} ({place(function)}) is a method of {within}, and would never be found; "
            "write it as a function of its own, outside of the class"
        )
    return str(function.__name__)


def _called(function: object) -> str:
    return str(getattr(function, "__name__", None) or function)


def _kind(function: Callable[..., object], called: str) -> str:
    kind = _KINDS.get((_is_async(function), _count(function)))
    if kind is None or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"{called} ({place(function)}) is `{_shape(function)}`; {ALLOWED}")
    return kind


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function)


def _count(function: Callable[..., object]) -> int:
    """The number of parameters, or -1 if any of them is not a plain one."""
    parameters = list(inspect.signature(function).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(p.kind not in plain or p.default is not inspect.Parameter.empty for p in parameters):
        return -1
    return len(parameters)


def _shape(function: Callable[..., Any]) -> str:
    names = ", ".join(str(p).split(":")[0] for p in inspect.signature(function).parameters.values())
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    word = "async def" if _is_async(function) or inspect.isasyncgenfunction(function) else "def"
    return f"{word} {function.__name__}({names})" + (" with yield" if yields else "")


def _name(name: object) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f'"{name}" cannot be the name of a target; use lower-case letters, digits, "-" and "_" '
            '(at most 64), such as on(…, name="record_payment")'
        )
    return name


def _route(
    source: str, type: str, where: Mapping[str, object] | None, ordered_by: str | Extractor | None, name: str
) -> Route:
    _refuse_no_glob("source", source)
    _refuse_no_glob("type", type)
    for pointer, value in (where or {}).items():
        parse(pointer)
        canonical(value)
    if isinstance(ordered_by, str):
        parse(ordered_by)
    elif ordered_by is not None:
        _refuse_no_order(ordered_by)
    return Route(source=source, type=type, where=dict(where or {}), ordered_by=ordered_by, to=(name,))


def _refuse_no_glob(word: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise ValueError(f'{word} is {text!r}; it must be a name or a glob such as "invoice.*"')


def _refuse_no_order(function: object) -> None:
    if not callable(function) or _is_async(function) or inspect.isgeneratorfunction(function):
        raise ValueError(
            f'ordered_by is {function!r}; it must be a JSON pointer such as "/data/customer", or a plain function '
            "(`def`, without yield) that takes what arrived and returns a text"
        )


def _timeout(timeout: str | float) -> float:
    value = span(timeout)
    if value <= 0:
        raise ValueError("timeout must be more than nothing")
    return value


def _concurrency(concurrency: object) -> int:
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= 1000:
        raise ValueError(f"concurrency is {concurrency!r}; it must be a whole number from 1 to 1000")
    return concurrency


def _rate(rate: object, kind: str) -> float | None:
    if rate is None:
        return None
    if kind == TRANSACTIONAL:
        raise ValueError("a transactional handler touches nothing but the file and has no rate; drop rate=")
    if isinstance(rate, str):
        return per_second(rate)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e9:
        raise ValueError(f'rate is {rate!r}; it must be such as "50/s" or a number a second')
    return float(rate)
