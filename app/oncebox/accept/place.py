"""Places: where in a request a signature, a time or a part of the signed text is found."""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable
from typing import Never

from oncebox.accept.form import form_pairs, query_pairs
from oncebox.accept.incoming import Incoming
from oncebox.accept.spec import refusal
from oncebox.errors import ConfigError
from oncebox.headers import HEADER
from oncebox.wording import closest

Pairs = list[tuple[bytes, bytes]]

UNREAD = object()
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
LONGEST = 16_384
NUMBERED = 100


class Digits(str):
    """A JSON number as it was written."""

    __slots__ = ()


class Reading:
    """One request while it is judged: its parsed forms, made only when asked for.

    `fields` are the parts of a `kv` signature, `ts` the time as it was sent, `url` the spelling that is being tried.
    """

    __slots__ = ("_form", "_json", "fields", "incoming", "ts", "url")

    def __init__(self, incoming: Incoming, item: object = UNREAD) -> None:
        self.incoming = incoming
        self.url = incoming.url
        self.ts = b""
        self.fields: dict[bytes, bytes] = {}
        self._json = item
        self._form: Pairs | None = None

    def json(self) -> object:
        """The body (or the item of it that is being judged) as JSON, its numbers as text."""
        if self._json is UNREAD:
            self._json = parse_json(self.incoming.decoded)
        return self._json

    def form(self) -> Pairs:
        """The body's form fields."""
        if self._form is None:
            self._form = _form_of(self.incoming)
        return self._form


Find = Callable[[Reading], bytes | None]
FindAll = Callable[[Reading], list[bytes | None]]


def parse_json(body: bytes) -> object:
    """A JSON body with its numbers as written; a name that comes twice is refused, as readers differ about it."""
    try:
        text = body.decode("utf-8-sig")
        return json.loads(text, parse_int=Digits, parse_float=Digits, parse_constant=_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else "no valid JSON in UTF-8"
        raise refusal(f"the body is {why}") from None


def compile_place(text: str, where: str) -> Find:
    """A finder of one value, which refuses a form field that repeats; raises ConfigError for an unknown place."""
    kind, _, name = text.partition(":")
    if text == "basic":
        return _basic
    if not name or kind not in _KINDS or (kind == "header" and not HEADER(name)):
        close = closest(kind, (*_KINDS, "json-every", "header-numbered"))
        meant = f'; did you mean "{close}:{name}"?' if name and close not in ("", kind) else ""
        raise ConfigError(
            f'{where}: "{text}" is no place in a request{meant}; write "header:NAME", "query:NAME", "form:NAME", '
            '"json:path.to.field", "body:/pointer" or "basic"'
        )
    return _KINDS[kind](name)


def compile_every(text: str, where: str) -> FindAll:
    """A finder of all values of a place: `json-every:list[].field`, `header-numbered:PREFIX`, else the single one."""
    kind, _, name = text.partition(":")
    if kind == "json-every":
        steps = name.replace("[]", ".[]").split(".")
        if "[]" not in steps:
            raise ConfigError(f'{where}: "{text}" names no list; write "json-every:list[].field"')
        return lambda reading: [_text(value) for value in _walk_all(reading.json(), steps)]
    if kind == "header-numbered" and name:
        names = [f"{name.lower()}{number}" for number in range(1, NUMBERED + 1)]
        return lambda reading: [
            reading.incoming.headers[known].encode("latin-1") for known in names if known in reading.incoming.headers
        ]
    find = compile_place(text, where)
    return lambda reading: [find(reading)]


def label(text: str) -> str:
    """A place in words for people."""
    kind, _, name = text.partition(":")
    if text == "basic":
        return "header Authorization with a user and a password"
    words = {"header": "header", "header-numbered": "header", "form": "form field", "query": "query parameter"}
    return f"{words.get(kind, 'JSON field')} {name}{'1' if kind == 'header-numbered' else ''}"


def walk(value: object, steps: list[str]) -> object:
    """The value at a path of names and indexes, or None."""
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 8:
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


def pointer_steps(pointer: str) -> list[str]:
    """The steps of a JSON pointer."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def in_query(text: str, name: bytes) -> bytes | None:
    """The first value of a query parameter, or None."""
    try:
        pairs = _encoded(query_pairs(text))
    except ValueError as error:
        raise refusal(f"the query cannot be read: {error}") from None
    return next((value for key, value in pairs if key == name), None)


def _header(name: str) -> Find:
    lowered = name.lower()

    def find(reading: Reading) -> bytes | None:
        value = reading.incoming.headers.get(lowered)
        return None if value is None else value.encode("latin-1", "replace")

    return find


def _query(name: str) -> Find:
    wanted = name.encode()
    return lambda reading: in_query(reading.incoming.query, wanted)


def _form(name: str) -> Find:
    wanted = name.encode()

    def find(reading: Reading) -> bytes | None:
        values = [value for key, value in reading.form() if key == wanted]
        if len(values) > 1:
            raise refusal(f"form field {name} came more than once; readers would differ about what it says")
        return values[0] if values else None

    return find


def _json(path: str) -> Find:
    steps = path.split(".")
    return lambda reading: _text(walk(reading.json(), steps))


def _body(pointer: str) -> Find:
    steps = pointer_steps(pointer)
    return lambda reading: _text(walk(reading.json(), steps))


def _sig(name: str) -> Find:
    wanted = name.encode()
    return lambda reading: reading.fields.get(wanted)


_KINDS: dict[str, Callable[[str], Find]] = {
    "header": _header,
    "query": _query,
    "form": _form,
    "json": _json,
    "body": _body,
    "sig": _sig,
}


def _basic(reading: Reading) -> bytes | None:
    scheme, _, text = reading.incoming.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic" or len(text) > LONGEST:
        return None
    try:
        return binascii.a2b_base64(text.strip().encode("latin-1"), strict_mode=True)
    except ValueError:
        return None


def _form_of(incoming: Incoming) -> Pairs:
    if not incoming.decoded:
        return []
    if incoming.content_type.partition(";")[0].strip().lower() not in FORMS:
        raise refusal(f"the body is no form but {incoming.content_type[:80] or 'of no content type'}")
    try:
        return _encoded(form_pairs(incoming.content_type, incoming.decoded))
    except ValueError as error:
        raise refusal(f"the form cannot be read: {error}") from None


def _encoded(pairs: list[tuple[str, str]]) -> Pairs:
    """The bytes as they came: signatures are made over bytes."""
    return [
        (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape")) for name, value in pairs
    ]


def _text(value: object) -> bytes | None:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return None


def _walk_all(value: object, steps: list[str]) -> list[object]:
    for at, step in enumerate(steps):
        if step == "[]":
            found = value if isinstance(value, list) else [None]
            return [leaf for item in found for leaf in _walk_all(item, steps[at + 1 :])]
        value = walk(value, [step])
    return [value]


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise refusal("the body has a JSON name twice in one object; readers would differ about what it says")
    return made


def _constant(name: str) -> Never:
    raise ValueError(name)
