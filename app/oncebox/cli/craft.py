"""Craft: a request as a sender would make it, with id and type where its source looks for them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
CLOUDEVENTS = "application/cloudevents-batch+json"
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
        self._batch = batch
        self._headers: dict[str, str] = {}
        self._query: dict[str, str] = {}
        self._form: dict[str, Any] = {}
        self._document: Any = None
        self._changed = body is None
        if body is None:
            self._document = {}
        elif batch is None:
            self._document = _object(body)

    def put(self, spec: str, value: object, *, force: bool = True) -> None:
        """Set what an extractor will find. Without `force` a value that is there stays."""
        first, *steps = _STEPS.split(spec)
        kind, _, name = first.partition(":")
        if kind == "header":
            self._headers[name] = _wrapped(steps, str(value))
        elif kind == "query":
            self._query[name] = _wrapped(steps, str(value))
        elif kind == "form" and self._given is None:
            self._put_form(name, steps, value)
        elif kind == "body" and self._document is not None:
            self._put_body(name, value, force=force)

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
        if self._form:
            fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in self._form.items()}
            return urlencode(fields).encode(), FORM
        if self._given is not None and not self._changed:
            natural = CLOUDEVENTS if self._batch == "cloudevents" else JSON
            return self._given, natural if _is_json(self._given) or self._batch else "application/octet-stream"
        document = self._document or {"sent_by": "oncebox send"}
        if self._batch == "cloudevents":
            return _dumps([document]), CLOUDEVENTS
        if self._batch is not None and self._batch.startswith("array"):
            return _dumps(_in_array(document, self._batch.partition(":")[2])), JSON
        return _dumps(document), "application/x-ndjson" if self._batch == "ndjson" else JSON


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

    Of an id in several parts the first one is made new, a part that is the type is the type, the others are "1".
    """
    draft = Draft(body, batch)
    for spec, value in extra:
        draft.put(spec, value, force=False)
    parts = [id_spec] if isinstance(id_spec, str) else list(id_spec or ())
    for index, part in enumerate(parts):
        if part != type_spec or index == 0:
            draft.put(part, id if index == 0 else "1", force=force_id and index == 0)
    if type_spec is not None and (type is not None or body is None or type_spec in parts[1:]):
        draft.put(type_spec, type or "test", force=type is not None)
    return draft


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


def _in_array(document: object, pointer: str) -> object:
    if not pointer:
        return [document]
    whole: dict[str, Any] = {}
    _set(whole, pointer, [document])
    return whole


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
