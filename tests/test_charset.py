"""Which charsets a body or an answer is read by, and that no name of one can break the reading."""

from __future__ import annotations

import encodings
import pkgutil
import warnings
from datetime import UTC, datetime
from encodings.aliases import aliases

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.drain.webhook import shown
from oncebox.headers import Headers
from oncebox.model import Event, charset, known_charset
from oncebox.perform.request import Request
from oncebox.pointer import Document

NAMES = sorted({*aliases, *aliases.values(), *(module.name for module in pkgutil.iter_modules(encodings.__path__))})
UNKNOWN = [
    *["utf8mb4", "", ".", "../ascii", "a" * 10_000, "\0", "\xe9", "\ud800", "none", "aliases"],
    *["idna", "punycode", "undefined", "unicode_escape", "unicode-escape", "Raw_Unicode_Escape"],
    *["hex", "base64", "bz2", "zip", "uu", "quopri", "rot13", "rot_13"],
]


@pytest.mark.parametrize("name", ["utf-8", "UTF8", "utf-16", "latin-1", "ISO-8859-1", "windows-1252", "shift_jis"])
def test_a_charset_of_texts_is_known_by_its_name(name: str) -> None:
    assert charset(f'text/plain; format=flowed; Charset="{name}"') == name


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_no_charset_is_read_as_utf_8(name: str) -> None:
    assert known_charset(name) == "utf-8"


@pytest.mark.parametrize("name", ["utf8mb4", "idna", "hex"])
def test_everybody_reads_a_body_of_an_unknown_charset_as_utf_8(name: str) -> None:
    kind, body = f"application/json; charset={name}", '{"v": "größe"}'.encode()
    event = Event(
        seq=1,
        source="demo",
        id="a",
        type=None,
        received_at=datetime.now(UTC),
        headers=Headers(),
        content_type=kind,
        body=body,
        raw=body,
    )
    assert event.text() == body.decode()
    assert event.json() == {"v": "größe"}
    headers = Headers([("Content-Type", kind)])
    request = Request(operation="o", caller="", key="k", method="POST", path="/", query="", headers=headers, body=body)
    assert request.json() == {"v": "größe"}
    assert Document(body, kind).at(("v",)) == "größe"
    assert Document(body, kind).at(())


@given(st.sampled_from([*NAMES, *UNKNOWN]), st.binary(max_size=300))
def test_no_answer_in_any_charset_breaks_its_reading(name: str, body: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown(body, charset(f"text/html; charset={name}"))
