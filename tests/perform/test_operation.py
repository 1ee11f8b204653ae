"""What may be an operation, and how operations are found."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from oncebox import Reply, Request, Transaction, operation
from oncebox.errors import HandlerError
from oncebox.perform.operation import Operation, find_operations, load_operations
from oncebox.store.staging import StagedTransaction


class Order(msgspec.Struct):
    sku: str


def both(request: Request, db: Transaction) -> Any: ...
def plain(request, db): ...  # type: ignore[no-untyped-def]
def blocking(request: Request) -> Any: ...
def typed(order: Order, db: Transaction) -> Any: ...
def turned(db: Transaction, order: Order) -> Any: ...
def all_three(request: Request, order: Order, db: Transaction) -> Any: ...
async def alone(request: Request) -> Any: ...
async def staged(request: Request, db: StagedTransaction) -> Any: ...
async def of_an_order(order: Order) -> Any: ...


@pytest.mark.parametrize(
    ("function", "kind", "roles"),
    [
        (both, "transactional", ("request", "db")),
        (plain, "transactional", ("request", "db")),
        (blocking, "blocking", ("request",)),
        (typed, "transactional", ("body", "db")),
        (turned, "transactional", ("db", "body")),
        (all_three, "transactional", ("request", "body", "db")),
        (alone, "async", ("request",)),
        (staged, "staged", ("request", "db")),
        (of_an_order, "async", ("body",)),
    ],
)
def test_the_signature_says_what_it_is(function: Any, kind: str, roles: tuple[str, ...]) -> None:
    made = operation("orders")(function)
    assert (made.signature.kind, made.signature.roles) == (kind, roles)
    assert made.shape is (Order if "body" in roles else None)


def nothing() -> Any: ...
def three(request: Request, db: Transaction, more: Any) -> Any: ...
def optional(request: Request, db: Transaction | None = None) -> Any: ...
def starred(*args: Any) -> Any: ...
def keyword(request: Request, *, db: Transaction) -> Any: ...
def two_bodies(one: Order, other: Order) -> Any: ...
def number(request: int, db: Transaction) -> Any: ...
def other_way(db: Transaction, request: Request) -> Any: ...
def unknown(order: NoSuchName, db: Transaction) -> Any: ...  # type: ignore[name-defined]  # noqa: F821
def generator(request: Request, db: Transaction) -> Any:
    yield


async def async_generator(request: Request) -> Any:
    yield


@pytest.mark.parametrize(
    "function",
    [
        *(nothing, three, optional, starred, keyword, two_bodies, number, other_way, unknown),
        *(generator, async_generator, object(), Order),
    ],
)
def test_another_signature_stops_the_start(function: Any) -> None:
    with pytest.raises(HandlerError, match="an operation is `def f"):
        operation("orders")(function)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("", {}),
        ("Orders", {}),
        ("a/b", {}),
        ("-a", {}),
        ("x" * 65, {}),
        ("ok\n", {}),
        (7, {}),
        ("orders", {"timeout": "soon"}),
        ("orders", {"timeout": 0}),
        ("orders", {"concurrency": 0}),
        ("orders", {"methods": ["GET"]}),
        ("orders", {"methods": []}),
    ],
)
def test_a_name_or_setting_that_cannot_be_used_stops_the_start(name: Any, more: dict[str, Any]) -> None:
    with pytest.raises(HandlerError, match=r"line \d+"):
        operation(name, **more)(both)


def test_a_function_that_is_decorated_twice_stops_the_start() -> None:
    with pytest.raises(HandlerError, match="is no plain function"):
        operation("more")(operation("orders")(both))


def test_an_operation_can_be_called_as_the_function_it_is() -> None:
    @operation("double")
    async def double(request: Request) -> Reply:
        """Twice as much."""
        return Reply(200)

    assert double.description == "Twice as much."
    assert isinstance(double, Operation)
    coroutine = double(request=None)  # type: ignore[arg-type]
    coroutine.close()


def module(name: str, **members: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


def test_operations_are_found_in_modules_and_one_that_two_of_them_import_counts_once() -> None:
    one, other = operation("one")(both), operation("other")(alone)
    found = find_operations([module("a", x=one, y=one), module("b", x=one, z=other, text="no operation")])
    assert found == {"one": one, "other": other}


def test_two_operations_of_one_name_stop_the_start() -> None:
    with pytest.raises(HandlerError, match='two operations are called "one"'):
        find_operations([module("a", x=operation("one")(both)), module("b", x=operation("one")(alone))])


def test_modules_that_are_loaded_are_searched_by_name() -> None:
    assert load_operations([]) == {}
    assert load_operations(["oncebox.perform.key"]) == {}
