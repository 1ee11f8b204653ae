"""Which requests are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.perform.fingerprint import fingerprint

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def of(body: bytes | str, content_type: str = "application/json", path: str = "/do/orders", query: str = "") -> bytes:
    return fingerprint("POST", path, query, content_type, body if isinstance(body, bytes) else body.encode())


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(one) for one in value] if isinstance(value, list) else value


@given(VALUES)
def test_the_order_of_members_and_the_way_of_writing_do_not_matter(value: Any) -> None:
    one = json.dumps(value, ensure_ascii=True)
    other = json.dumps(shuffled(value), ensure_ascii=False, indent=2)
    if any(0xD800 <= ord(c) < 0xE000 for c in other):
        return
    assert of(one) == of(other)


@given(VALUES, VALUES)
def test_different_structures_are_different(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (of(json.dumps(one)) == of(json.dumps(other))) == same


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_bytes_that_are_no_json_are_compared_as_bytes(one: bytes, other: bytes) -> None:
    assert (of(one, "text/plain") == of(other, "text/plain")) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", '"1"'),
        ("100", "1e2"),
        ("9007199254740993", "9007199254740992"),
        ("[]", "{}"),
        ("[[1],2]", "[1,[2]]"),
        ('{"a":null}', "{}"),
        ("[1,2]", "[2,1]"),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":1,"a":1}', '{ "a":1,"a":1}'),
        ("true", "1"),
        ("NaN", "null"),
        ("", "null"),
        ('"\\ud800"', '"\\ud801"'),
    ],
)
def test_what_one_reader_may_take_for_something_else_is_another_request(one: str, other: str) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":[1,{"c":2,"d":3}]}', ' { "b" : [1, {"d":3, "c":2}], "a":1 }\n'),
        ('"\\u00e9"', '"é"'),
        ("\ufeff[]", "[]"),
        ("123456789012345678901234567890", " 123456789012345678901234567890"),
    ],
)
def test_what_every_reader_takes_for_the_same_is_the_same_request(one: str, other: str) -> None:
    assert of(one) == of(other)


def test_method_path_query_and_body_belong_to_it() -> None:
    ways = [
        fingerprint("POST", "/do/orders", "", "", b"{}"),
        fingerprint("PUT", "/do/orders", "", "", b"{}"),
        fingerprint("POST", "/do/refunds", "", "", b"{}"),
        fingerprint("POST", "/do/orders", "a=1", "", b"{}"),
        fingerprint("POST", "/do/orders", "", "", b"[]"),
    ]
    assert len(set(ways)) == len(ways)


def test_a_parameter_of_the_content_type_does_not_matter() -> None:
    assert of('{"a":1, "b":2}', "application/json; charset=utf-8") == of('{"b":2,"a":1}', "application/problem+json")
    assert of("{}", "") == of("{ }", "application/json")
    assert of("{}", "text/plain") != of("{ }", "text/plain")


def test_json_nested_deeper_than_can_be_read_is_compared_as_bytes() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert of(deep) == of(deep)
    assert of(deep) != of(f" {deep}")
