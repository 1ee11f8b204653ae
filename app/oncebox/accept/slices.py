"""Slices: the items of a list as they stand in JSON that only Python reads, such as lone surrogates. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice

from oncebox.accept.pointer import list_index
from oncebox.pointer import Path

_BLANK = re.compile(r"[ \t\n\r]*")
# Numbers are only stepped over; of any length, and never as floats.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
Slice = tuple[int, int]


def slice_items(data: bytes, path: Path, limit: int) -> list[bytes] | None:
    """The first `limit` items of the list at `path`, byte for byte; None if there is no list.

    Raises ValueError for what is not JSON at all, RecursionError for what is nested too deeply.
    """
    text = data.decode("utf-8", "surrogateescape")
    _DECODER.decode(text)
    at = _blank(text, 0)
    for key in path:
        found = _step(text, at, key)
        if found is None:
            return None
        at = found
    if not text.startswith("[", at):
        return None
    return [text[start:end].encode("utf-8", "surrogateescape") for start, end in islice(_items(text, at), limit)]


def _step(text: str, at: int, key: str) -> int | None:
    if text.startswith("{", at):
        # Of a key that comes twice the last one counts, as everywhere.
        return next(iter([start for name, start in _members(text, at) if name == key][-1:]), None)
    index = list_index(key)
    if index is None or not text.startswith("[", at):
        return None
    return next((start for start, _ in islice(_items(text, at), index, None)), None)


def _items(text: str, at: int) -> Iterator[Slice]:
    at = _blank(text, at + 1)
    while not text.startswith("]", at):
        _, end = _DECODER.raw_decode(text, at)
        yield at, end
        at = _next(text, end)


def _members(text: str, at: int) -> Iterator[tuple[str, int]]:
    at = _blank(text, at + 1)
    while not text.startswith("}", at):
        name, end = _DECODER.raw_decode(text, at)
        start = _blank(text, _blank(text, end) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield name, start
        at = _next(text, end)


def _next(text: str, end: int) -> int:
    """Where the next member starts, or the bracket that ends them; the whole is known to be JSON."""
    at = _blank(text, end)
    return _blank(text, at + 1) if text.startswith(",", at) else at


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at
