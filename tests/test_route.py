"""Routes: where events go."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.model import Arrival, Planned
from oncebox.pointer import MISSING, Document, canonical, equal, parse
from oncebox.route import Route, compile_router, internal_sources, reach

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def arrival(
    source: str = "stripe",
    type: str | None = "invoice.paid",
    body: bytes = b"{}",
    content_type: str = "application/json",
) -> Arrival:
    return Arrival(
        source=source,
        id="1",
        type=type,
        received_at=1,
        headers=(),
        content_type=content_type,
        encoding=None,
        body=body,
        decoded=body,
        body_hash=sha256(body).digest(),
        verified="unsigned",
    )


def targets(routes: list[Route], event: Arrival) -> list[str]:
    return [planned.target for planned in compile_router(routes)(event)]


def test_an_event_goes_to_every_target_of_every_matching_route_once() -> None:
    routes = [Route(source="stripe", to=("a", "b")), Route(source="str*", to=("b", "c")), Route(source="x", to=("d",))]
    assert targets(routes, arrival()) == ["a", "b", "c"]


def test_no_matching_route_means_no_delivery() -> None:
    assert targets([Route(source="github", to=("a",))], arrival()) == []


@pytest.mark.parametrize(
    ("glob", "type", "matches"),
    [
        ("*", None, True),
        ("**", None, False),
        ("", None, False),
        ("invoice.*", "invoice.paid", True),
        ("invoice.*", "Invoice.paid", False),
        ("invoice.?aid", "invoice.paid", True),
        ("[ij]nvoice*", "invoice.paid", True),
        ("invoice", "invoice.paid", False),
    ],
)
def test_types_are_case_sensitive_globs_and_no_type_matches_only_the_star(
    glob: str, type: str | None, matches: bool
) -> None:
    assert bool(targets([Route(type=glob, to=("a",))], arrival(type=type))) is matches


@pytest.mark.parametrize(
    ("body", "wanted", "matches"),
    [
        (b'{"v": 1}', 1, True),
        (b'{"v": 1.0}', 1, True),
        (b'{"v": true}', 1, False),
        (b'{"v": 1}', True, False),
        (b'{"v": "1"}', 1, False),
        (b'{"v": 9007199254740993}', 9007199254740992, False),
        (b'{"v": 9007199254740993}', 9007199254740993, True),
        (b'{"v": 123456789012345678901234567890}', 123456789012345678901234567890, True),
        (b'{"v": 123456789012345678901234567890}', 123456789012345678901234567891, False),
        (b'{"v": 0.1}', 0.1, True),
        (b'{"v": 1e400}', 1, False),
        (b'{"v": 1e99999999999999999999}', 1, False),
        (b'{"v": null}', None, True),
        (b"{}", None, False),
        (b'{"v": {"b": [1, "x"], "a": null}}', {"a": None, "b": [1, "x"]}, True),
        (b'{"v": [1, 2]}', [2, 1], False),
        (b'\xef\xbb\xbf{"v": 1}', 1, True),
        (b'{"v": 1} x', 1, False),
        (b"not json", 1, False),
        (b"", 1, False),
        (b'{"v": "\xff"}', "\xff", False),
        (b'{"v": "\\ud800"}', "x", False),
        (b'{"note": "\\ud800", "v": 1}', 1, True),
        (b"[" * 100_000, 1, False),
        (b'{"v": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 1, False),
        (b'{"v": ' + b"1" * 5_000 + b"}", 1, False),
    ],
)
def test_where_compares_as_json_and_a_bad_body_matches_nothing(body: bytes, wanted: object, matches: bool) -> None:
    assert bool(targets([Route(where={"/v": wanted}, to=("a",))], arrival(body=body))) is matches


def test_all_conditions_must_hold() -> None:
    route = Route(where={"/livemode": True, "/data/0/kind": "card"}, to=("a",))
    assert targets([route], arrival(body=b'{"livemode": true, "data": [{"kind": "card"}]}')) == ["a"]
    assert targets([route], arrival(body=b'{"livemode": true, "data": [{"kind": "sepa"}]}')) == []
    assert targets([route], arrival(body=b'{"livemode": true, "data": []}')) == []


def test_a_body_in_another_charset_is_read_by_its_charset() -> None:
    event = arrival(body='{"v": "ü"}'.encode("utf-16"), content_type="application/json; charset=utf-16")
    assert targets([Route(where={"/v": "ü"}, to=("a",))], event) == ["a"]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"c": "cus_1"}', "cus_1"),
        (b'{"c": 12345678901234567890123}', "12345678901234567890123"),
        (b'{"c": 1.50}', "1.50"),
        (b'{"c": null}', None),
        (b"{}", None),
        (b"not json", None),
        (b'{"c": {"b": 1, "a": true}}', '{"a":true,"b":"1"}'),
    ],
)
def test_the_order_key_is_the_value_at_the_pointer(body: bytes, key: str | None) -> None:
    router = compile_router([Route(ordered_by="/c", to=("a",))])
    assert list(router(arrival(body=body))) == [Planned("a", key)]


def test_an_order_key_that_no_database_could_take_is_hashed() -> None:
    router = compile_router([Route(ordered_by="/c", to=("a",))])
    for value in ("x" * 5_000, "\ud800", "a\x00b"):
        (planned,) = router(arrival(body=json.dumps({"c": value}).encode()))
        assert planned.order_key is not None
        assert planned.order_key.startswith("sha256:")
        assert len(planned.order_key.encode()) <= 255


def test_an_extractor_gives_the_order_key_and_its_faults_give_none() -> None:
    def broken(_arrival: Arrival) -> str:
        raise ZeroDivisionError

    router = compile_router([Route(ordered_by=lambda a: a.source, to=("a",)), Route(ordered_by=broken, to=("b",))])
    assert list(router(arrival())) == [Planned("a", "stripe"), Planned("b", None)]


class Sly(str):
    """A text that answers nothing as a text does."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        raise KeyboardInterrupt

    def __str__(self) -> str:
        return "x" * 10_000_000


async def later() -> str:
    return "k"


def deeper(arrival: Arrival) -> str:
    return deeper(arrival)


def leave(_arrival: Arrival) -> str:
    raise SystemExit(3)


def stop(_arrival: Arrival) -> str:
    raise GeneratorExit


@pytest.mark.parametrize(
    ("function", "key"),
    [
        (lambda _: "a", "a"),
        (lambda _: 7, "7"),
        (lambda _: Sly("sly"), "sly"),
        (lambda _: None, None),
        (lambda _: b"bytes", None),
        (lambda _: {"a": object()}, None),
        (lambda _: object(), None),
        (lambda _: later(), None),
        (lambda _: 10**5000, None),
        (deeper, None),
        (leave, None),
        (stop, None),
    ],
)
def test_an_odd_end_of_an_extractor_harms_nobody(function: Any, key: str | None) -> None:
    router = compile_router([Route(ordered_by=function, to=("a",)), Route(to=("b",))])
    assert list(router(arrival())) == [Planned("a", key), Planned("b", None)]


def test_an_absurdly_long_key_of_an_extractor_is_kept_short() -> None:
    router = compile_router([Route(ordered_by=lambda _: "x" * 10_000_000, to=("a",))])
    [planned] = router(arrival())
    assert planned.order_key is not None
    assert len(planned.order_key) < 100


def test_a_fault_of_an_extractor_is_said_once_and_quotes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def odd(arrival: Arrival) -> str:
        raise ValueError(arrival.body)

    router = compile_router([Route(ordered_by=odd, to=("a", "b"))])
    for _ in range(3):
        router(arrival(body=b"confidential"))
    assert [record.getMessage() for record in caplog.records] == [
        "ordered_by failed target=a,b: it ended with ValueError; such an event is in no order"
    ]


def test_the_targets_that_events_of_a_source_may_come_to_are_known() -> None:
    routes = [Route(source="a", to=("x",)), Route(source="*", to=("y",)), Route(source="b*", to=("x", "z"))]
    assert reach(routes, {"a", "b", "c"}) == {"x": {"a", "b"}, "y": {"a", "b", "c"}, "z": {"b"}}


def test_the_first_matching_route_decides_the_order_key() -> None:
    router = compile_router([Route(where={"/x": 1}, to=("a",)), Route(ordered_by="/c", to=("a",))])
    assert list(router(arrival(body=b'{"x": 1, "c": "k"}'))) == [Planned("a", None)]
    assert list(router(arrival(body=b'{"x": 2, "c": "k"}'))) == [Planned("a", "k")]


def test_plans_are_remembered_but_not_without_bound() -> None:
    router = compile_router([Route(type="t.*", to=("a",))])
    assert router(arrival(type="t.1")) is router(arrival(type="t.1"))
    for number in range(10_000):
        router(arrival(type=f"t.{number}"))
    (cell,) = [c for c in router.__closure__ or () if isinstance(c.cell_contents, dict)]
    assert len(cell.cell_contents) <= 4_096


@pytest.mark.parametrize("pointer", ["data", "/a~", "/a~2"])
def test_a_pointer_that_is_none_is_refused(pointer: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON pointer"):
        compile_router([Route(where={pointer: 1})])


def test_pointers_escape_slashes_and_tildes() -> None:
    document = Document(b'{"a/b": {"~": [10, 20]}, "": 1}')
    assert document.at(parse("/a~1b/~0/1")) == "20"
    assert document.at(parse("/")) == "1"
    assert document.at(parse("/a~1b/~0/01")) is MISSING
    assert document.at(parse("/a~1b/~0/-1")) is MISSING
    assert document.at(parse("/a~1b/~0/2")) is MISSING


def test_internal_sources_are_those_that_only_routes_name_or_that_are_declared_and_heard() -> None:
    routes = [Route(source="mail"), Route(source="stripe"), Route(source="sms-*"), Route(source="ring")]
    declared, receiving = {"sms-out", "unheard"}, {"stripe", "demo"}
    assert internal_sources(routes, declared=declared, receiving=receiving) == {"mail", "sms-out", "ring"}


@settings(max_examples=1000, deadline=None)
@given(json_values)
def test_every_json_value_equals_itself_and_is_found_where_it_is(value: object) -> None:
    body = json.dumps({"deep": [{"er": value}]}).encode()
    found = Document(body).at(("deep", "0", "er"))
    assert equal(found, canonical(value))
    assert equal(Document(body).at(()), canonical({"deep": [{"er": value}]}))


@settings(max_examples=1000, deadline=None)
@given(json_values, json_values)
def test_two_json_values_are_equal_exactly_when_python_says_so_type_by_type(one: object, other: object) -> None:
    def typed(value: object) -> object:
        if isinstance(value, list):
            return ["list", *map(typed, value)]
        if isinstance(value, dict):
            return {name: typed(item) for name, item in value.items()}
        kind = "number" if type(value) in (int, float) else type(value).__name__
        return (kind, value)

    found = Document(json.dumps(one).encode()).at(())
    assert equal(found, canonical(other)) == (typed(one) == typed(other))


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=200) | st.text().map(lambda t: json.dumps({"v": t}).encode()), st.text(max_size=30))
def test_no_body_and_no_content_type_makes_the_router_raise(body: bytes, content_type: str) -> None:
    router = compile_router([Route(where={"/v": 1}, to=("a",)), Route(ordered_by="/v", to=("b",))])
    planned = router(arrival(body=body, content_type=content_type))
    for plan in planned:
        (plan.order_key or "").encode()
    assert planned[-1].target == "b"


def test_routes_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Route().source = "x"  # type: ignore[misc]  # that is the point
    assert msgspec.structs.asdict(Route())["type"] == "*"
