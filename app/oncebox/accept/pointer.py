"""Pointer: JSON pointers (RFC 6901) compiled into one reader that skips all else in a body. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from oncebox.pointer import BOM, Path, parse

# A key of digits up to here is also an index into a list.
MAX_INDEX = 999
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_TEXT = msgspec.json.Decoder(str)
_NAMES = msgspec.json.Decoder(dict[str, Raw])


class Unreadable(ValueError):
    """The bytes are not JSON; the message says where that shows."""


class NotText(ValueError):
    """The value has no exact text; the message says what it is instead."""


def parse_pointer(text: str) -> Path:
    """The keys of a pointer such as `/entry/0/id`; raises ValueError saying how one is written."""
    if not text:
        raise ValueError('"" is not a JSON pointer such as "/event/id": it would be the whole body')
    return parse(text)


class Pointers:
    """Several pointers read in one pass. Of a key that comes twice in an object the last one counts, as in `json`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._read = _compile(self.paths)

    def read(self, data: bytes) -> tuple[Any, ...]:
        """The value at each pointer as it stands in the bytes (`Raw`), UNSET where there is none.

        Raises Unreadable. A byte order mark is skipped; bytes that are not UTF-8 matter only in what is read.
        """
        if data.startswith(BOM):
            data = data[3:]
        try:
            return self._read(data)
        except (ValueError, AttributeError, RecursionError):
            return self._walk(data)

    def _walk(self, data: bytes) -> tuple[Any, ...]:
        """The slow way, for shapes that differ from the compiled one and for JSON that only Python reads."""
        try:
            return tuple(walk(data, path) for path in self.paths)
        except (ValueError, RecursionError):
            tree = _tree(data)
            return tuple(_descend(tree, path) for path in self.paths)


def text_of(value: Any) -> str | None:
    """A value's exact text: a string as it is, an integer as its digits; None for absent, null and "".

    Raises NotText for all else.
    """
    if value is UNSET:
        return None
    try:
        return _TEXT.decode(value) or None
    except msgspec.ValidationError:
        return _digits(bytes(value))
    except ValueError:
        if bytes(value)[:1] != b'"':
            return _digits(bytes(value))  # NaN or Infinity, which only Python reads
        raise NotText("is not text: it has a stray byte or a lone surrogate") from None


def _digits(value: bytes) -> str | None:
    if _INTEGER.fullmatch(value) and value != b"-0":
        return value.decode()
    if value == b"null":
        return None
    kinds = {b"{": "an object", b"[": "a list", b"t": "true", b"f": "false"}
    raise NotText(f"is {kinds.get(value[:1], 'a number other than a plain integer')}; a text or an integer is needed")


def names(data: bytes) -> list[str] | None:
    """The names of an object, each once and as they come; None where it is no object, or no JSON."""
    data = data.removeprefix(BOM)
    try:
        return list(_NAMES.decode(data))
    except msgspec.ValidationError:
        return None
    except (ValueError, RecursionError):
        pass
    try:
        tree = _tree(data)
    except Unreadable:
        return None
    return list(tree) if isinstance(tree, dict) else None


def walk(data: Any, path: Path) -> Any:
    """The value at a pointer, found key by key through objects and lists; UNSET if there is none.

    Raises ValueError or RecursionError where the bytes cannot be read.
    """
    for key in path:
        data = _step(data, key)
        if data is UNSET:
            break
    return data


def _step(data: Any, key: str) -> Any:
    try:
        return _member(key)(data)
    except msgspec.ValidationError:
        pass
    index = list_index(key)
    if index is None:
        return UNSET
    try:
        return first_items(data, index + 1)[index]
    except (msgspec.ValidationError, IndexError):
        return UNSET


def list_index(key: str) -> int | None:
    """The index that a key stands for in a list; None if it stands for none."""
    return int(key) if re.fullmatch("0|[1-9][0-9]{0,2}", key) and int(key) <= MAX_INDEX else None


@lru_cache(256)
def _member(key: str) -> Callable[[Any], Any]:
    try:
        decoder = msgspec.json.Decoder(msgspec.defstruct("Member", [_field(0, key, Raw)], gc=False))
    except (ValueError, UnicodeEncodeError):
        # msgspec takes no quote, backslash or control character in a field's name.
        wide = msgspec.json.Decoder(dict[str, Raw])
        return lambda data: wide.decode(data).get(key, UNSET)
    return lambda data: decoder.decode(data).f0  # type: ignore[attr-defined]


def first_items(data: Any, count: int) -> list[Any]:
    """The first items of a list as they stand in the bytes; what follows them is read past and never held.

    Raises msgspec.ValidationError if it is no list, DecodeError if it is no JSON.
    """
    return [item for item in msgspec.structs.astuple(_first(count).decode(data)) if item is not UNSET]


@cache
def _first(count: int) -> msgspec.json.Decoder[msgspec.Struct]:
    fields = [_field(n, None, Raw) for n in range(count)]
    return msgspec.json.Decoder(msgspec.defstruct("First", fields, array_like=True, gc=False))


def _field(number: int, key: str | None, shape: Any, default: Any = UNSET) -> tuple[str, Any, Any]:
    return f"f{number}", shape, msgspec.field(name=key, default=default)


def _compile(paths: tuple[Path, ...]) -> Callable[[bytes], tuple[Any, ...]]:
    """One struct for all pointers. Where msgspec cannot say it (a value that is also a parent), the slow way it is."""
    try:
        tree: dict[str, Any] = {}
        for path in paths:
            _plant(tree, path)
        shape, names = _shape(tree)
        decoder = msgspec.json.Decoder(shape)
    except (ValueError, UnicodeEncodeError):
        return lambda data: tuple(walk(data, path) for path in paths)
    found = [names[path] for path in paths]
    get = attrgetter(*found)
    if len(found) == 1:
        return lambda data: (get(decoder.decode(data)),)
    return lambda data: get(decoder.decode(data))


def _plant(tree: dict[str, Any], path: Path) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
        if tree is None:
            raise ValueError("a value that is also a parent")
    if tree.setdefault(path[-1], None) is not None:
        raise ValueError("a value that is also a parent")


def _shape(tree: dict[str, Any]) -> tuple[type[msgspec.Struct], dict[Path, str]]:
    """The struct for a tree of keys, and the attribute that leads to each pointer."""
    indexes = {index: key for key in tree if (index := list_index(key)) is not None}
    as_list = len(indexes) == len(tree)
    fields: list[tuple[str, Any, Any]] = []
    names: dict[Path, str] = {}
    for number, key in enumerate(map(indexes.get, range(max(indexes) + 1)) if as_list else tree):
        below = tree.get(key) if key is not None else None
        if below is None:
            fields.append(_field(number, None if as_list else key, Raw))
            names[(key or "",)] = f"f{number}"
            continue
        shape, deeper = _shape(below)
        fields.append(_field(number, None if as_list else key, shape | None, shape()))
        names.update({(key, *path): f"f{number}.{name}" for path, name in deeper.items() if key is not None})
    return msgspec.defstruct("Shape", fields, array_like=as_list, frozen=True, gc=False), names


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _tree(data: bytes) -> Any:
    """What only Python reads: lone surrogates, UTF-16, NaN. Invalid UTF-8 becomes surrogates: it stays invalid."""
    try:
        text = data.decode(json.detect_encoding(data), "surrogateescape")
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except json.JSONDecodeError as error:
        raise Unreadable(f"it is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Unreadable("its JSON is nested too deeply") from None
    except ValueError:
        raise Unreadable("it is not JSON") from None


def _descend(tree: Any, path: Path) -> Any:
    for key in path:
        index = list_index(key)
        if isinstance(tree, dict) and key in tree:
            tree = tree[key]
        elif isinstance(tree, list) and index is not None and index < len(tree):
            tree = tree[index]
        else:
            return UNSET
    if isinstance(tree, _Number):
        return tree.encode()
    return json.dumps(tree).encode() if not isinstance(tree, dict | list) else b"{" if isinstance(tree, dict) else b"["
