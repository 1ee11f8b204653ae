"""Emission: what a handler emits, as an arrival. Pure, shared by the store's transaction and by staged ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256

from oncebox.content import Unfit, written
from oncebox.errors import EmitError
from oncebox.model import Arrival

VERIFIED = "emitted"
MAX_TEXT_BYTES = 1024

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie"})


def emission(
    source: str,
    id: str,
    type: str | None,
    body: object,
    headers: Mapping[str, str] | None,
    parent: int | None,
    now: int,
) -> Arrival:
    """The arrival that `db.emit(...)` stands for; raises EmitError for an id, type, header or body that cannot be kept.

    Bytes are kept as they are, text becomes UTF-8, anything else JSON; a content-type header overrides the default.
    """
    check_text(source, "id", id)
    if type is not None:
        check_text(source, "type", type)
    data, content_type = _encoded(source, id, body)
    pairs = _header_pairs(source, id, headers or {})
    given = next((value for name, value in pairs if name.lower() == "content-type"), None)
    if given is None:
        pairs = (("content-type", content_type), *pairs)
    return Arrival(
        source=source,
        id=id,
        type=type,
        received_at=now,
        headers=pairs,
        content_type=given or content_type,
        encoding=None,
        body=data,
        decoded=data,
        body_hash=sha256(data).digest(),
        verified=VERIFIED,
        parent=parent,
    )


def check_text(source: str, word: str, text: object) -> None:
    """Hold an emitted id or type to the rules of received ones; raises EmitError that names the fault."""
    fault = _text_fault(text)
    if fault:
        raise EmitError(f"emit into {source}: the {word} {_shown(text)} {fault}")


def _text_fault(text: object) -> str:
    if not isinstance(text, str):
        return "is not text; give a str"
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        return "has a lone surrogate, which UTF-8 cannot carry"
    if not 1 <= length <= MAX_TEXT_BYTES:
        return f"has {length} bytes; 1 to {MAX_TEXT_BYTES} are allowed"
    if _CONTROL.search(text):
        return "has a control character"
    if text != text.strip():
        return "has a blank at one end; strip it first"
    return ""


def _shown(text: object) -> str:
    shown = ascii(text)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _encoded(source: str, id: str, body: object) -> tuple[bytes, str]:
    try:
        return written(body)
    except Unfit as error:
        raise EmitError(f"emit into {source}: the body of {_shown(id)} {error}") from error


def _header_pairs(source: str, id: str, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in headers.items():
        fault = _header_fault(name, value)
        if fault:
            raise EmitError(f"emit into {source}: the header {_shown(name)} of {_shown(id)} {fault}")
    return tuple(headers.items())


def _header_fault(name: object, value: object) -> str:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        return "is not a header name"
    if name.lower() in _CREDENTIALS:
        return "carries credentials, and those are never stored; let the receiving handler add it"
    if not isinstance(value, str) or _HEADER_CONTROL.search(value):
        return "has a value that is not text on one line"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "has a value with a lone surrogate"
    return ""
