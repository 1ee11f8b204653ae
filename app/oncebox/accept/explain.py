"""Explain: what would become of a request, judged as the server would and without storing anything. Pure."""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from oncebox.accept.answer import Answer, answer, batch_answer, refusal
from oncebox.accept.door import Door
from oncebox.accept.incoming import Incoming, read_headers
from oncebox.body import too_large
from oncebox.errors import OnceboxError, Rejected
from oncebox.model import Arrival, Stored

YEAR_10000 = 253_402_300_800


class Asked(msgspec.Struct, frozen=True):
    """A request to be judged. A body that is not text comes as `body_base64`.

    `at` is unix seconds or RFC 3339, None: now. Headers by name (a list: it came several times) are UTF-8; as pairs
    they are what a refused request was kept with, one letter for each byte.
    """

    source: str
    method: str = "POST"
    url: str = ""
    headers: dict[str, str | list[str]] | list[tuple[str, str]] = msgspec.field(default_factory=dict)
    body: str | None = None
    body_base64: str | None = None
    at: float | str | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What would become of it. `problem` is the last part of the problem's type, `reply` what the sender would get."""

    source: str
    accepted: bool
    problem: str | None
    detail: str | None
    events: list[dict[str, Any]]
    reply: dict[str, Any]


def read_asked(line: str | bytes) -> Asked:
    """A request from a line of JSON. Raises OnceboxError saying what is wrong with it."""
    try:
        asked = msgspec.json.decode(line, type=Asked)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OnceboxError(
            f'not a request: {error}; write {{"source", "method", "url", "headers", "body" or "body_base64", "at"}}'
        ) from None
    if asked.body is not None and asked.body_base64 is not None:
        raise OnceboxError("not a request: give body or body_base64, not both")
    return asked


def incoming_of(asked: Asked, door: Door | None, now: int) -> Incoming:
    """The request as it would come over the wire. Raises OnceboxError for a body that is not base64."""
    body = (asked.body or "").encode("utf-8", "surrogatepass")
    if asked.body_base64 is not None:
        try:
            body = binascii.a2b_base64(asked.body_base64.encode(), strict_mode=True)
        except ValueError as error:
            raise OnceboxError(f"not a request: body_base64 is no base64: {error}") from None
    headers, repeated = read_headers(_pairs(asked.headers))
    arrived = now if asked.at is None else _moment(asked.at)
    query = asked.url.partition("#")[0].partition("?")[2]
    url = asked.url if door is None else door.signed_url(asked.url, query)
    return Incoming(asked.method, url, query, headers, repeated, body, body, arrived)


def explain(door: Door | None, source: str, incoming: Incoming) -> Verdict:
    """The verdict on one request; its `at` is what its signature is judged by."""
    if door is None:
        why = Rejected(404, "unknown-source", "there is no source of this name in the configuration")
        return _refused(None, source, why)
    try:
        door.admit(incoming.method, incoming.headers, None)
        if len(incoming.body) > door.limit:
            raise too_large(door.limit)
        opened = door.open(incoming)
        greeting = door.greet(opened)
        if greeting is not None:
            reply = Answer(greeting.status, greeting.content_type, greeting.body, greeting.headers)
            return Verdict(
                source, greeting.status < 300, None, "a verification request, which is no event", [], _said(reply)
            )
        verified = door.verify(opened)
        arrivals = door.arrivals(opened, verified.scheme)
    except Rejected as why:
        return _refused(door, source, why)
    return _accepted(door, opened, arrivals)


def _pairs(headers: Mapping[str, str | list[str]] | Sequence[tuple[str, str]]) -> Iterator[tuple[bytes, bytes]]:
    named = isinstance(headers, Mapping)
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        for text in [value] if isinstance(value, str) else value:
            yield name.lower().encode("utf-8", "surrogatepass"), _value(text, wire=not named)


def _value(text: str, *, wire: bool) -> bytes:
    try:
        return text.encode("latin-1" if wire else "utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _moment(at: float | str) -> int:
    try:
        seconds = datetime.fromisoformat(at).timestamp() if isinstance(at, str) else at
        if not 0 <= seconds < YEAR_10000:
            raise ValueError
        return round(seconds * 1_000_000)
    except (ValueError, OverflowError):
        raise OnceboxError(f"not a request: at is {at!r}, which is neither unix seconds nor RFC 3339") from None


def _refused(door: Door | None, source: str, why: Rejected) -> Verdict:
    return Verdict(source, False, why.slug, why.detail, [], _said(refusal(door, why)))


def _accepted(door: Door, incoming: Incoming, arrivals: Sequence[Arrival]) -> Verdict:
    stored = [Stored(0, one.id, one.received_at, one.reply, replayed=False) for one in arrivals]
    batch = door.is_batch(incoming)
    reply = batch_answer(arrivals, stored, door.reply) if batch else answer(arrivals, stored)
    envelope = door.fields.envelope(incoming) if batch else None
    events = [
        {
            "id": one.id,
            "type": one.type,
            "parts": list(door.fields.read(incoming, one.body if batch else None, envelope, index).parts),
        }
        for index, one in enumerate(arrivals)
    ]
    return Verdict(door.source, True, None, None, events, _said(reply))


def _said(reply: Answer) -> dict[str, Any]:
    return {"status": reply.status, "content_type": reply.content_type, "body": reply.body.decode("utf-8", "replace")}
