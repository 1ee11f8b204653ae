"""The forms of an Idempotency-Key."""

from __future__ import annotations

import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.errors import Rejected
from oncebox.perform.key import idempotency_key

PRINTABLE = "".join(chr(n) for n in range(0x20, 0x7F))
KEYS = st.text(PRINTABLE, min_size=1, max_size=255)


def quoted(key: str) -> bytes:
    return b'"' + key.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


@given(KEYS)
def test_any_printable_key_can_be_quoted(key: str) -> None:
    assert idempotency_key([quoted(key)]) == key


@given(KEYS.filter(lambda key: key == key.strip() and not key.startswith('"')))
def test_a_bare_key_is_the_same_as_the_quoted_one(key: str) -> None:
    assert idempotency_key([key.encode()]) == idempotency_key([quoted(key)]) == key


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_key_or_is_refused(value: bytes) -> None:
    with suppress(Rejected):
        key = idempotency_key([value])
        assert 1 <= len(key) <= 255
        assert set(key) <= set(PRINTABLE)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"   "],
        [b'""'],
        [b"x" * 256],
        [quoted("x" * 256)],
        [b"a\tb"],
        [b"caf\xc3\xa9"],
        [b"a\x00"],
        [b'"abc'],
        [b'"a"b"'],
        [b'"a"; q=1'],
        [b'"a\\b"'],
        [b'"a", "b"'],
        [b"a", b"a"],
        [b"a", b"b"],
    ],
)
def test_a_key_that_is_missing_doubled_or_out_of_form_is_refused(values: list[bytes]) -> None:
    with pytest.raises(Rejected) as caught:
        idempotency_key(values)
    assert (caught.value.status, caught.value.slug) == (400, "bad-key")


def test_a_key_of_255_characters_is_taken_either_way() -> None:
    key = (string.ascii_letters * 5)[:255]
    assert idempotency_key([key.encode()]) == key
    assert idempotency_key([quoted(key)]) == key
