"""Batch: several events in one request, each as the exact bytes it has in the body. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET

from oncebox.accept.form import form_pairs
from oncebox.accept.pointer import first_items, parse_pointer, walk
from oncebox.accept.slices import slice_items
from oncebox.errors import Rejected
from oncebox.pointer import BOM, Path

MAX_ITEMS = 10_000
JSON = "application/json"
CLOUDEVENT = "application/cloudevents+json"
CLOUDEVENTS = "application/cloudevents-batch+json"


class BadItem(Rejected):
    """One item of a batch is wrong, and with it the whole request."""

    def __init__(self, index: int, cause: Rejected) -> None:
        super().__init__(cause.status, cause.slug, f"item {index}: {cause.detail}", cause.headers)
        self.index = index


class Batch(msgspec.Struct, frozen=True):
    """How a source packs its events: `array`, `array:/pointer`, `form:NAME`, `ndjson` or `cloudevents`."""

    form: str
    path: Path = ()
    field: str = ""

    def applies(self, content_type: str) -> bool:
        """Whether a request is a batch at all: CloudEvents say it in the content type, the others always are."""
        return self.form != "cloudevents" or content_type.partition(";")[0].strip().lower() == CLOUDEVENTS

    @property
    def content_type(self) -> str:
        """The content type of one item."""
        return CLOUDEVENT if self.form == "cloudevents" else JSON


def compile_batch(text: str) -> Batch:
    """A batch from its text in the configuration; raises ValueError saying how it is written."""
    form, colon, more = text.partition(":")
    if form == "form" and more:
        return Batch(form, field=more)
    if form not in ("array", "ndjson", "cloudevents") or (colon and form != "array"):
        raise ValueError(f'"{text}" is no form of batch; write array, array:/pointer, form:NAME, ndjson or cloudevents')
    return Batch(form, parse_pointer(more) if colon else ())


def split(decoded: bytes, batch: Batch, content_type: str = "") -> list[bytes]:
    """The items, byte for byte as they stand in the body (or in its form field, which may be empty).

    Raises Rejected 400 "bad-body", also for too many.
    """
    if batch.form == "ndjson":
        items = list(islice(_lines(decoded), MAX_ITEMS + 1))
    elif batch.form == "form":
        items = _field(decoded, batch.field, content_type)
    else:
        items = _array(decoded, batch.path)
    if len(items) > MAX_ITEMS:
        raise _bad_body(f"the batch has more than {MAX_ITEMS} items; send it in parts")
    return items


def _lines(decoded: bytes) -> Iterator[bytes]:
    for line in re.finditer(rb"[^\n]+", decoded.removeprefix(BOM)):
        text = line[0].removesuffix(b"\r")
        if text.strip():
            yield text


def _field(decoded: bytes, name: str, content_type: str) -> list[bytes]:
    try:
        values = [value for field, value in form_pairs(content_type, decoded) if field == name]
    except ValueError as error:
        raise _bad_body(f"the body is not a form: {error}") from None
    if len(values) != 1:
        raise _bad_body(f"form field {name}, which holds the events, came {len(values)} times")
    return _array(values[0].encode("utf-8", "surrogateescape"), (), f"form field {name}")


def _array(decoded: bytes, path: Path, place: str = "the body") -> list[bytes]:
    body = decoded.removeprefix(BOM)
    place = "the value at /" + "/".join(path) if path else place
    try:
        items = _found(body, path)
    except (ValueError, RecursionError):
        raise _bad_body(f"{place} cannot be read for its items: it is not JSON, or nested too deeply") from None
    if items is None:
        raise _bad_body(f"{place} is not a list of events")
    return items


def _found(body: bytes, path: Path) -> list[bytes] | None:
    try:
        value: Any = walk(body, path)
        return None if value is UNSET else [bytes(item) for item in _items(value)]
    except msgspec.ValidationError:
        return None
    except (ValueError, RecursionError):
        return slice_items(body, path, MAX_ITEMS + 1)


def _items(body: Any) -> list[Any]:
    """A list that could be too long is read no further than that: held whole it would take 40 times its size."""
    few = len(body if isinstance(body, bytes) else bytes(body)) <= 2 * MAX_ITEMS
    return _LIST.decode(body) if few else first_items(body, MAX_ITEMS + 1)


_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def _bad_body(detail: str) -> Rejected:
    return Rejected(400, "bad-body", detail)
