"""Craft: a request as a sender would make it, with id and type where its source looks for them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
NDJSON = "application/x-ndjson"
CLOUDEVENT = "application/cloudevents+json"
CLOUDEVENTS = "application/cloudevents-batch+json"
PLACES = ("header", "body", "form", "query", "envelope", "cloudevent")
_STEPS = re.compile(r" (?=json:|mime:|percent(?: |$))")

Spec = str | Sequence[str] | None


class Crafted(msgspec.Struct, frozen=True):
    """What is to be sent, still without a signature."""

    headers: dict[str, str]
    query: str
    body: bytes


class Draft:
    """A request in the making. A body that was given stays byte for byte unless something must be put into it."""

    def __init__(self, body: bytes | None, batch: str | None) -> None:
        self._given = body
        self._cloudevent = batch == "cloudevents"
        self._batch = None if self._cloudevent else batch
        self._headers: dict[str, str] = {}
        self._query: dict[str, str] = {}
        self._form: dict[str, Any] = {}
        self._envelope: dict[str, Any] = {}
        self._document: Any = None
        self._changed = body is None
        if body is None:
            self._document = {"specversion": "1.0"} if self._cloudevent else {}
        elif self._batch is None:
            self._document = _object(body)

    def put(self, spec: str, value: object, *, force: bool = True) -> None:
        """Set what an extractor will find. Without `force` a value that is there stays."""
        first, *steps = _STEPS.split(spec)
        kind, _, name = first.partition(":")
        if kind == "header":
            # A header's text is bytes by the letter, as it is read again.
            self._headers[name] = _wrapped(steps, str(value)).encode("utf-8", "surrogateescape").decode("latin-1")
        elif kind == "query":
            self._query[name] = _wrapped(steps, str(value))
        elif kind == "form" and self._given is None:
            self._put_form(name, steps, value)
        elif kind == "envelope" and self._batch is not None:
            _set(self._envelope, name, value)
        elif kind in ("body", "envelope", "cloudevent") and self._document is not None:
            self._put_body(f"/{name}" if kind == "cloudevent" else name, value, force=force)

    def _put_form(self, name: str, steps: Sequence[str], value: object) -> None:
        if steps and steps[0].startswith("json:"):
            inner = self._form.setdefault(name, {})
            _set(inner, steps[0].removeprefix("json:"), value)
        else:
            self._form[name] = _wrapped(steps, str(value))

    def _put_body(self, pointer: str, value: object, *, force: bool) -> None:
        if force or _get(self._document, pointer) is None:
            _set(self._document, pointer, value)
            self._changed = True

    def finish(self, content_type: str | None = None) -> Crafted:
        """The request."""
        body, natural = self._body()
        headers = {"Content-Type": content_type or natural, **self._headers}
        return Crafted(headers, urlencode(self._query), body)

    def _body(self) -> tuple[bytes, str]:
        if self._given is not None and not self._changed:
            return self._given, self._natural(self._given)
        form, _, place = (self._batch or "").partition(":")
        document = self._document or {"sent_by": "oncebox send"}
        if form == "form":
            self._form[place] = [document]
        if self._form:
            fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in self._form.items()}
            return urlencode(fields).encode(), FORM
        if form == "array":
            return _dumps(_in_array(document, place, self._envelope)), JSON
        return _dumps(document), CLOUDEVENT if self._cloudevent else NDJSON if form == "ndjson" else JSON

    def _natural(self, body: bytes) -> str:
        """The content type that a given body seems to have."""
        if self._cloudevent:
            return CLOUDEVENT if self._document is not None else CLOUDEVENTS
        if self._batch is not None and self._batch.startswith("form:"):
            return FORM
        return JSON if self._batch is not None or _is_json(body) else "application/octet-stream"


def craft(
    id_spec: Spec,
    type_spec: str | None,
    *,
    id: str,
    type: str | None,
    body: bytes | None,
    batch: str | None = None,
    force_id: bool = False,
    extra: Sequence[tuple[str, object]] = (),
) -> Draft:
    """A draft with this id and type. In a body that was given an id that is there stays, unless `force_id`.

    Of an id in several parts one is made new, a part that is the type is the type, the others are "1".
    """
    draft = Draft(body, batch)
    parts = [id_spec] if isinstance(id_spec, str) else list(id_spec or ())
    new = _new_part(parts, {type_spec, *(spec for spec, _ in extra)})
    if new is None and body is None:
        draft.put("body:/sent_id", id)
    for part in parts:
        draft.put(part, id if part == new else "1", force=force_id and part == new)
    for spec, value in extra:
        draft.put(spec, value, force=body is None)
    if type_spec is not None and (type is not None or body is None or type_spec in parts):
        draft.put(type_spec, type or "test", force=type is not None or body is None)
    return draft


def _new_part(parts: Sequence[str], taken: Collection[str | None]) -> str | None:
    """The part that makes an id a new one: the one called id, else the first that can be set."""
    if len(parts) == 1:
        return parts[0]
    free = [part for part in parts if part not in taken and part.partition(":")[0] in PLACES]
    return next((part for part in free if part.lower().endswith("id")), free[0] if free else None)


def _wrapped(steps: Sequence[str], value: str) -> str:
    """The text that the steps of an extractor lead back to `value`."""
    for step in reversed(steps):
        word, _, name = step.partition(":")
        if word == "percent":
            value = quote(value, safe="")
        elif word == "mime":
            value = f"{name}: {value}\r\n\r\n"
        else:
            inner: dict[str, Any] = {}
            _set(inner, name, value)
            value = json.dumps(inner)
    return value


def _tokens(pointer: str) -> list[str]:
    return [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]


def _set(document: Any, pointer: str, value: object) -> None:
    """Set the value at a pointer, making what is missing on the way: objects, and lists where a number stands."""
    tokens = _tokens(pointer)
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        new: object = value if following is None else [] if following.isdigit() else {}
        if isinstance(document, list):
            index = int(token) if token.isdigit() else 0
            document.extend([{}] * (index + 1 - len(document)))
            if following is None or not isinstance(document[index], dict | list) or not document[index]:
                document[index] = new
            document = document[index]
            continue
        if following is None or not isinstance(document.get(token), dict | list):
            document[token] = new
        document = document[token]


def _get(document: Any, pointer: str) -> object:
    for token in _tokens(pointer):
        if isinstance(document, dict):
            document = document.get(token)
        elif isinstance(document, list) and token.isdigit() and int(token) < len(document):
            document = document[int(token)]
        else:
            return None
    return document


def _in_array(document: object, pointer: str, envelope: dict[str, Any]) -> object:
    if not pointer:
        return [document]
    _set(envelope, pointer, [document])
    return envelope


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
