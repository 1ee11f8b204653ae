"""The values that travel through the product. Frozen, without any input or output of their own."""

from __future__ import annotations

import builtins
import codecs
import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec

from oncebox.headers import Headers

T = TypeVar("T")

MICROSECONDS = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What Python decodes by and no text is sent in: forms of names and of source code, and the one that always fails.
# Bytes of a body that is not held for longer than it is needed.
HEAVY = 1 << 12
NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})


def moment(at: int) -> str:
    """Unix microseconds as RFC 3339 UTC with microseconds: `2026-12-02T01:02:03.000004Z`."""
    seconds, rest = divmod(at, MICROSECONDS)
    return f"{_second(seconds)}.{rest:06d}Z"


def instant(at: int) -> datetime:
    """Unix microseconds as an aware datetime, exact."""
    return EPOCH + timedelta(microseconds=at)


def unix(at: datetime) -> int:
    """An aware datetime as unix microseconds, exact."""
    return (at - EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


class Event(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """What arrived, as a handler sees it. `body` is decoded, `raw` is what was on the wire."""

    seq: int
    source: str
    id: str
    type: str | None
    received_at: datetime
    headers: Headers
    content_type: str
    body: bytes
    raw: bytes
    run: int = 1
    attempt: int = 1
    parent: int | None = None
    instance: str = ""
    again: bool = False

    @property
    def idempotency_key(self) -> str:
        """Names this event for the other side of an effect that may happen twice; a rerun has another name only when
        it was asked for `again`."""
        name = f"{self.instance}:{self.source}:{self.id}"
        return f"{name}:{self.run}" if self.again else name

    def text(self) -> str:
        """The body as text, by the charset of its content type (UTF-8 unless said), a byte order mark removed."""
        return self.body.decode(charset(self.content_type)).removeprefix("\ufeff")

    def json(self) -> object:
        """The body as JSON; integers of any size are exact."""
        return json.loads(self.text())

    def form(self) -> dict[str, str]:
        """The body as an urlencoded form; of a repeated field the last value."""
        return dict(parse_qsl(self.body.decode("utf-8"), keep_blank_values=True))

    def decode(self, shape: builtins.type[T]) -> T:
        """The body as JSON, validated into a msgspec Struct; raises `msgspec.ValidationError` with the path."""
        return msgspec.json.decode(self.text(), type=shape)


def charset(content_type: str) -> str:
    """The charset that a content type names, if Python knows it as a text encoding; else UTF-8."""
    for part in content_type.split(";")[1:]:
        name, _, value = part.strip().partition("=")
        if name.lower() == "charset":
            return known_charset(value.strip().strip('"'))
    return "utf-8"


@lru_cache(maxsize=256)
def known_charset(name: str) -> str:
    """The name itself if Python can decode text by it, else UTF-8."""
    try:
        known = codecs.lookup(name).name.replace("_", "-")
        b"a".decode(name, "replace")  # of no bytes at all, even an unknown name decodes; not every codec is of text
    except (LookupError, ValueError):
        return "utf-8"
    return "utf-8" if known in NO_CHARSETS else name


class Reply(msgspec.Struct, frozen=True):
    """What a sender is answered in place of the built-in receipt."""

    status: int
    content_type: str
    body: bytes


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One event on its way into the store; `body` is the wire, `body_hash` the SHA-256 of the decoded bytes.

    `headers` come without credentials. `window` (microseconds, 0: for ever) bounds how long an id made from the body
    absorbs equal bodies. `reject_conflict`: another body under the same id is an error instead of a replay.
    """

    source: str
    id: str
    type: str | None
    received_at: int
    headers: tuple[tuple[str, str], ...]
    content_type: str
    encoding: str | None
    body: bytes
    decoded: bytes
    body_hash: bytes
    verified: str
    parent: int | None = None
    reply: Reply | None = None
    reject_conflict: bool = False
    window: int = 0


class Stored(msgspec.Struct, frozen=True):
    """The store's answer for one arrival: the receipt's facts, the first's for every replay."""

    seq: int
    id: str
    received_at: int
    reply: Reply | None
    replayed: bool
    conflict: bool = False


class Planned(msgspec.Struct, frozen=True):
    """One delivery to be made of an event: the router's answer."""

    target: str
    order_key: str | None = None


class Claimed(msgspec.Struct, frozen=True):
    """A delivery that is running now. (seq, target, run, attempt) names the attempt; a settle repeats it. `history`: a
    rerun has queued it."""

    event: Event
    target: str
    run: int
    attempt: int
    failures: int
    suspect: int = 0
    encoding: str | None = None
    history: bool = False

    @property
    def weight(self) -> int:
        """The bytes of its body as they lie in memory."""
        return len(self.event.body) + (len(self.event.raw) if self.encoding else 0)

    def light(self) -> Claimed:
        """The same without a body that would be worth its weight."""
        if self.weight < HEAVY:
            return self
        return msgspec.structs.replace(self, event=msgspec.structs.replace(self.event, body=b"", raw=b""))


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was turned away, kept so that a mistake of ours can be mended. No credential headers."""

    source: str
    at: int
    slug: str
    detail: str
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class StagedWrites(msgspec.Struct, frozen=True):
    """What an async handler wants written together with its mark: statements and emits, in order."""

    statements: tuple[tuple[str, tuple[object, ...]] | Arrival, ...]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended and what becomes of its delivery.

    `state` is done, pending (again at `due`) or dead; `outcome` ok, error, timeout, unreachable, refused or crashed.
    Times are unix microseconds, `duration` microseconds. `failures` is the count that the schedule goes by.
    """

    seq: int
    target: str
    run: int
    attempt: int
    state: str
    outcome: str
    started_at: int
    duration: int
    now: int
    due: int = 0
    failures: int = 0
    error: str | None = None


def receipt(source: str, id: str, received_at: int) -> bytes:
    """The built-in receipt, computed from the row alone. Its shape is frozen: replays are compared byte for byte."""
    return msgspec.json.encode({"source": source, "id": id, "received_at": moment(received_at)})


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A request that names what it wants done by a key of its caller's. `fingerprint` is the hash of the request, `at`
    when it came; what ended before `expired` is forgotten. Times are unix microseconds."""

    caller: str
    key: str
    operation: str
    fingerprint: bytes
    at: int
    expired: int = 0


class Result(msgspec.Struct, frozen=True):
    """What an operation answered, as it is repeated: byte for byte."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Performed(msgspec.Struct, frozen=True):
    """What the store says of a call.

    `new`: it may start, as that attempt · `done`: it was performed now · `freed`: it was, and nothing of it is kept ·
    `replayed`: it was performed before, with this result · `conflict`: the key stands for another request · `running`
    · `unknown`: it was started before and nobody knows how it ended.
    """

    state: str
    result: Result | None = None
    attempt: int = 1
