"""Handlers: what the decorators make of functions, and how modules of them are loaded."""

from __future__ import annotations

import calendar
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncebox import Event, StagedTransaction, Transaction, on, setup
from oncebox.drain.load import load_handlers
from oncebox.drain.retry import RetryPolicy
from oncebox.errors import HandlerError


def transactional(event: Event, db: Transaction) -> None: ...
def blocking(event: Event) -> None: ...
async def awaited(event: Event) -> None: ...
async def staged(event: Event, db: StagedTransaction) -> None: ...


@pytest.mark.parametrize(
    ("function", "kind"),
    [(transactional, "transactional"), (blocking, "blocking"), (awaited, "async"), (staged, "staged")],
)
def test_the_signature_says_what_a_handler_is(function: Callable[..., Any], kind: str) -> None:
    handler = on("stripe")(function)
    assert (handler.kind, handler.name) == (kind, function.__name__)


def test_a_handler_can_still_be_called() -> None:
    @on("stripe")
    def double(event: int) -> int:
        """Twice."""
        return event * 2

    assert double(21) == 42
    assert (double.__doc__, double.name) == ("Twice.", "double")


def test_what_the_decorator_says_is_kept() -> None:
    handler = on(
        "shop-*",
        type="order.*",
        where={"/live": True},
        name="orders",
        ordered_by="/customer",
        timeout="250ms",
        concurrency=9,
        rate="600/m",
        retry={"attempts": 2},
    )(blocking)
    route = handler.route
    assert (route.source, route.type, dict(route.where), route.ordered_by) == (
        "shop-*",
        "order.*",
        {"/live": True},
        "/customer",
    )
    assert route.to == ("orders",) == (handler.name,)
    assert (handler.timeout, handler.concurrency, handler.rate) == (0.25, 9, 10.0)
    assert handler.retry == RetryPolicy(attempts=2)


def no_parameters() -> None: ...
def three(event: Event, db: Transaction, more: int) -> None: ...
def with_default(event: Event, db: Transaction | None = None) -> None: ...
def with_rest(*events: Event) -> None: ...
def keyword_only(event: Event, *, db: Transaction) -> None: ...
def generator(event: Event) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [no_parameters, three, with_default, with_rest, keyword_only, generator])
def test_a_wrong_signature_names_the_function_and_what_is_allowed(function: Callable[..., Any]) -> None:
    with pytest.raises(HandlerError) as caught:
        on("stripe")(function)
    said = str(caught.value)
    assert f"def {function.__name__}(" in said
    assert "test_handler.py, line" in said
    assert "`def f(event, db)` (transactional)" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "Orders"}, '"Orders" cannot be the name of a target'),
        ({"name": "x" * 65}, "at most 64"),
        ({"name": ""}, '"" cannot be the name of a target'),
        ({"type": ""}, "type is ''"),
        ({"where": {"live": True}}, '"live" is not a JSON pointer'),
        ({"where": {"/live": object()}}, "is not a JSON value"),
        ({"ordered_by": "customer"}, '"customer" is not a JSON pointer'),
        ({"timeout": "30"}, '"30" is not a duration'),
        ({"timeout": 0}, "timeout must be more than nothing"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "concurrency is True"),
        ({"rate": "fast"}, '"fast" is not a rate'),
        ({"rate": 0}, "rate is 0"),
        ({"retry": {"tries": 3}}, 'retry has no "tries"'),
    ],
)
def test_a_wrong_option_names_the_function_and_the_option(options: dict[str, Any], said: str) -> None:
    with pytest.raises(HandlerError) as caught:
        on("stripe", **options)(blocking)
    assert str(caught.value).startswith("blocking (")
    assert said in str(caught.value)


def test_a_transactional_handler_has_no_rate() -> None:
    with pytest.raises(HandlerError, match="touches nothing but the file and has no rate"):
        on("stripe", rate="5/s")(transactional)


def test_decorating_something_else_is_refused() -> None:
    with pytest.raises(HandlerError, match="decorated twice"):
        on("a")(on("b")(blocking))
    with pytest.raises(HandlerError, match="is no function"):
        on("a")(object())  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(HandlerError, match=r"awaited .* a setup is `def f\(db\)`"):
        setup(awaited)
    with pytest.raises(HandlerError, match=r"transactional .* a setup is"):
        setup(transactional)


HANDLERS = """
from oncebox import on, setup

@setup
def tables(db): pass

@on("stripe")
def record(event, db): pass

@on("mail")
async def send(event): pass

also = record
"""

Write = Callable[[str, str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module and gives the name to load it by; forgets all of them afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield written
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", "") and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_a_module_is_searched_for_what_the_decorators_made(module: Write, tmp_path: Path) -> None:
    found = load_handlers([module("h_plain", HANDLERS)], tmp_path)
    assert found.names == ("record", "send")
    assert [route.source for route in found.routes] == ["stripe", "mail"]
    assert len(found.setups) == 1


def test_an_object_that_several_modules_import_counts_once(module: Write, tmp_path: Path) -> None:
    module("h_first", HANDLERS)
    module("h_second", "from h_first import record, tables\nimport h_first as again\n")
    found = load_handlers(["h_second", "h_first"], tmp_path)
    assert found.names == ("record", "send")
    assert len(found.setups) == 1


def test_two_handlers_of_one_name_stop_the_start(module: Write, tmp_path: Path) -> None:
    module("h_one", HANDLERS)
    module("h_two", HANDLERS)
    with pytest.raises(HandlerError) as caught:
        load_handlers(["h_one", "h_two"], tmp_path)
    said = str(caught.value)
    assert 'two targets are called "record"' in said
    assert f"{tmp_path}/h_one.py, line 7" in said
    assert f"{tmp_path}/h_two.py, line 7" in said


def test_a_handler_may_not_have_the_name_of_a_configured_target(module: Write, tmp_path: Path) -> None:
    with pytest.raises(HandlerError, match=r'"record": \[targets\] of the configuration and'):
        load_handlers([module("h_taken", HANDLERS)], tmp_path, taken={"shop", "record"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nimport nowhere_to_be_found\n", "line 2: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\n\ndef f(:\n", "line 3: SyntaxError: "),
        ("\n\n1 / 0\n", "line 3: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('no')\n", "line 2: SystemExit: no"),
        (
            "from oncebox import on\n@on('a')\ndef f(): pass\n",
            ".py, line 2) is `def f()`; a handler is",
        ),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError: "),
    ],
)
def test_a_module_that_cannot_be_imported_stops_the_start_with_file_line_and_error(
    module: Write, tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(HandlerError) as caught:
        load_handlers([module("h_broken", text)], tmp_path)
    assert f"handler module h_broken cannot be imported: {tmp_path}/h_broken.py, " in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_module_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(HandlerError, match=r"there is no shop/handlers_of\.py in"):
        load_handlers(["shop.handlers_of"], tmp_path)


def test_a_module_that_hides_behind_another_of_its_name_is_refused(module: Write, tmp_path: Path) -> None:
    assert calendar.__file__
    hidden = module("calendar", HANDLERS)
    with pytest.raises(HandlerError, match=r"calendar\.py is hidden by another module of that name"):
        load_handlers([hidden], tmp_path)


def test_a_decorator_without_its_parentheses_is_said_so(module: Write, tmp_path: Path) -> None:
    text = "from oncebox import on\n\n@on\ndef record(event, db): pass\n"
    with pytest.raises(HandlerError, match=r"record \(.*h_bare\.py, line 3\): on is written with the source in paren"):
        load_handlers([module("h_bare", text)], tmp_path)


@pytest.mark.parametrize("above", ["", "    @staticmethod\n", "    @classmethod\n"])
def test_a_method_is_no_handler_and_says_so(module: Write, tmp_path: Path, above: str) -> None:
    text = f"from oncebox import on\nclass Shop:\n    @on('a')\n{above}    def record(self, event): pass\n"
    with pytest.raises(HandlerError, match=r"Shop\.record \(.*is a method of Shop|is no function"):
        load_handlers([module("h_method", text)], tmp_path)


def test_a_setup_in_a_class_is_refused_too() -> None:
    with pytest.raises(HandlerError, match=r"tables .*is a method of Shop"):
        exec("class Shop:\n    @setup\n    def tables(db): pass\n", {"setup": setup, "__name__": "x"})


def test_a_handler_made_inside_of_a_function_is_found_by_its_name(module: Write, tmp_path: Path) -> None:
    inside = "    @on('a')\n    def inner(event): pass\n    return inner\n"
    text = f"from oncebox import on\ndef make():\n{inside}made = make()\n"
    assert load_handlers([module("h_made", text)], tmp_path).names == ("inner",)


def test_a_module_that_brings_nothing_is_noted(module: Write, tmp_path: Path) -> None:
    names = [module("h_idle", "from oncebox import Event, on, setup\ndef record(event, db): pass\n")]
    (note,) = load_handlers(names, tmp_path).notes
    assert note.startswith("handlers: h_idle has nothing decorated in it")
    assert load_handlers([module("h_busy", HANDLERS)], tmp_path).notes == ()


def test_a_handler_inside_of_a_list_is_noted_and_not_one_that_also_has_a_name(module: Write, tmp_path: Path) -> None:
    made = "from oncebox import on\ndef f(event): pass\ndef g(event): pass\ng = on('b')(g)\n"
    (nothing, note) = load_handlers([module("h_held", f"{made}ALL = [on('a')(f)]\ndel g\n")], tmp_path).notes
    assert "has nothing decorated" in nothing
    assert "handler f at" in note
    assert "inside of h_held.ALL" in note
    assert load_handlers([module("h_named", f"{made}ALL = {{'g': g}}\n")], tmp_path).notes == ()


async def _later(_event: object) -> str:
    return "k"


def _many(_event: object) -> Iterator[str]:
    yield "k"


@pytest.mark.parametrize("function", [7, b"/id", _later, _many])
def test_what_cannot_give_an_order_is_refused_where_it_is_written(function: Any) -> None:
    with pytest.raises(HandlerError, match=r"ordered_by is .*; it must be a JSON pointer such as"):

        @on("demo", ordered_by=function)
        def handler(_event: Event) -> None:
            return
