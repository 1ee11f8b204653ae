"""Extractor: where a text is in a request (`header:X-Id`, `form:payload json:/id`), compiled once. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from email.parser import HeaderParser
from hashlib import sha256
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET

from oncebox.accept.form import Pairs, form_pairs, query_pairs
from oncebox.accept.incoming import Incoming
from oncebox.accept.pointer import NotText, Pointers, Unreadable, parse_pointer, text_of, walk
from oncebox.headers import HEADER
from oncebox.pointer import BOM, Path
from oncebox.wording import closest

WRITTEN = (
    "header:NAME, body:/pointer, form:NAME, query:NAME, hash:body, cloudevent:NAME or (of a batch) envelope:/pointer "
    "or item:index, and then json:/pointer, mime:NAME or percent if it is inside of that"
)
# In the other mode of CloudEvents the attributes are headers and the body is the data.
STRUCTURED = "application/cloudevents"


class Unfit(ValueError):
    """Something is there, and it can be no id; the message is the rest of a sentence that starts with the place."""


class View:
    """One event of a request while its texts are looked up; the body is parsed at most once."""

    __slots__ = ("_form", "_leaves", "data", "envelope", "incoming", "index", "pointers")

    def __init__(
        self,
        incoming: Incoming,
        data: bytes,
        pointers: Pointers | None,
        envelope: View | None = None,
        index: int = 0,
    ) -> None:
        self.incoming = incoming
        self.data = data
        self.pointers = pointers
        self.envelope = envelope
        self.index = index
        self._leaves: tuple[Any, ...] | None = None
        self._form: Pairs | None = None

    def leaf(self, number: int) -> Any:
        """The value at one of the body's pointers; raises Unreadable."""
        if self._leaves is None:
            assert self.pointers is not None
            self._leaves = self.pointers.read(self.data)
        return self._leaves[number]

    def form(self) -> Pairs:
        """The fields of the body as a form; raises Unreadable."""
        if self._form is None:
            try:
                self._form = form_pairs(self.incoming.content_type, self.data)
            except ValueError as error:
                raise Unreadable(f"it is not a form: {error}") from None
        return self._form


Find = Callable[[View], str | None]


class Extractor(msgspec.Struct, frozen=True):
    """`find` gives the text, None where there is none; raises Unfit and Unreadable. `place` says where it looks."""

    spec: str
    place: str
    in_body: bool
    find: Find


def compile_extractor(spec: str, paths: list[Path]) -> Extractor:
    """An extractor from its text. A pointer into the body is added to `paths`, all of which are read in one pass.

    `in_body` says that two items of a batch can differ in it.

    Raises ValueError saying how it is written.
    """
    first, *steps = re.split(r" (?=json:|mime:|percent(?: |$))", spec)
    kind, colon, name = first.partition(":")
    if not colon or not name or kind not in _KINDS or name != _ONLY.get(kind, name):
        raise ValueError(f'"{spec}" is not where a text can be{_meant(kind, spec)}; write {WRITTEN}')
    find, place = _KINDS[kind](name, paths)
    for step in steps:
        find = _after(step, find)
    place = place + "".join(f", {step}" for step in steps)
    return Extractor(spec, place, kind in _IN_BODY, find)


def blank(spec: str, view: View) -> str:
    """What stands at a place that counts as nothing: "null" or "empty"; "" where there is nothing at all."""
    kind, _, name = spec.partition(":")
    if kind == "header":
        return "empty" if name.lower() in view.incoming.headers else ""
    try:
        if kind == "body":
            value = walk(view.data.removeprefix(BOM), parse_pointer(name))
            return "" if value is UNSET else {b"null": "null", b'""': "empty"}.get(bytes(value), "")
        pairs = view.form() if kind == "form" else query_pairs(view.incoming.query) if kind == "query" else []
    except (ValueError, RecursionError):
        return ""
    return "empty" if any(key == name for key, _ in pairs) else ""


def _meant(kind: str, spec: str) -> str:
    """The spelling that was meant, in one word with what follows it."""
    close = closest(kind, _KINDS)
    return f'; did you mean "{close}{spec[len(kind) :]}"?' if close not in ("", kind) else ""


def _header(name: str, paths: list[Path]) -> tuple[Find, str]:
    if not HEADER(name):
        raise ValueError(f'"{name}" cannot be the name of a header; names are letters, digits and "-"')
    key = name.lower()

    def find(view: View) -> str | None:
        value = view.incoming.headers.get(key)
        if key in view.incoming.repeated:
            raise Unfit("came more than once")
        if value is None or value.isascii():
            return value or None
        return _utf8(value.encode("latin-1", "replace"))

    return find, f"in header {name}"


def _body(name: str, paths: list[Path]) -> tuple[Find, str]:
    path = parse_pointer(name)
    if path not in paths:
        paths.append(path)
    number = paths.index(path)

    def find(view: View) -> str | None:
        try:
            return text_of(view.leaf(number))
        except NotText as error:
            raise Unfit(str(error)) from None

    return find, f"at {name}"


def _envelope(name: str, paths: list[Path]) -> tuple[Find, str]:
    inside, place = _body(name, paths)
    return lambda view: inside(view.envelope or view), f"{place}, beside the items"


def _item(name: str, paths: list[Path]) -> tuple[Find, str]:
    return lambda view: str(view.index), "of its place in the batch"


def _cloudevent(name: str, paths: list[Path]) -> tuple[Find, str]:
    in_body, _ = _body(f"/{name}", paths)
    in_header, _ = _header(f"ce-{name}", paths)

    def find(view: View) -> str | None:
        if view.incoming.content_type[: len(STRUCTURED)].lower() == STRUCTURED:
            return in_body(view)
        text = in_header(view)
        return None if text is None else _percent(_unquoted(text))

    return find, f"of the CloudEvents attribute {name}"


def _form(name: str, paths: list[Path]) -> tuple[Find, str]:
    return lambda view: _only(view.form(), name), f"in form field {name}"


def _query(name: str, paths: list[Path]) -> tuple[Find, str]:
    def find(view: View) -> str | None:
        try:
            pairs = query_pairs(view.incoming.query)
        except ValueError as error:
            raise Unfit(f"cannot be read: {error}") from None
        return _only(pairs, name)

    return find, f"in query parameter {name}"


def _hash(name: str, paths: list[Path]) -> tuple[Find, str]:
    return lambda view: sha256(view.data).hexdigest(), "in the body"


_KINDS = {
    "header": _header,
    "body": _body,
    "form": _form,
    "query": _query,
    "hash": _hash,
    "envelope": _envelope,
    "cloudevent": _cloudevent,
    "item": _item,
}
_ONLY = {"hash": "body", "item": "index"}
_IN_BODY = ("body", "form", "hash", "cloudevent", "item")


def _only(pairs: Pairs, name: str) -> str | None:
    values = [value for key, value in pairs if key == name]
    if len(values) > 1:
        raise Unfit("came more than once")
    return values[0] or None if values else None


def _after(step: str, before: Find) -> Find:
    """What is found inside of what was found before."""
    word, _, name = step.partition(":")
    inside = _percent if word == "percent" else _mime(name) if word == "mime" else _json(name)

    def find(view: View) -> str | None:
        text = before(view)
        return None if text is None else inside(text)

    return find


def _unquoted(text: str) -> str:
    """The value of a header that may be a quoted string (RFC 9110, 5.6.4)."""
    quoted = re.fullmatch(r'"((?:[^"\\]|\\.)*)"', text)
    return text if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])


def _percent(text: str) -> str | None:
    return _utf8(unquote_to_bytes(text)) or None


def _mime(name: str) -> Callable[[str], str | None]:
    if not name:
        raise ValueError("after mime: comes the name of a header, such as mime:Message-ID")

    def inside(text: str) -> str | None:
        value = HeaderParser().parsestr(text.lstrip("\r\n"), headersonly=True).get(name)
        return None if value is None else re.sub(r"\r?\n[ \t]+", " ", str(value)).strip() or None

    return inside


def _json(name: str) -> Callable[[str], str | None]:
    pointers = Pointers([parse_pointer(name)])

    def inside(text: str) -> str | None:
        try:
            return text_of(pointers.read(text.encode("utf-8", "surrogateescape"))[0])
        except NotText as error:
            raise Unfit(str(error)) from None
        except (Unreadable, UnicodeEncodeError):
            raise Unfit("is not JSON") from None

    return inside


def _utf8(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise Unfit("is not UTF-8") from None


def compile_all(specs: Sequence[str], paths: list[Path]) -> tuple[Extractor, ...]:
    """Several extractors that share one pass over the body; raises ValueError."""
    return tuple(compile_extractor(spec, paths) for spec in specs)
