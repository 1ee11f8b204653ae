"""Inbox: the front half. A request is checked, read, stored and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time_ns

import msgspec

from oncebox.accept.batch import BadItem
from oncebox.accept.body import Receive, read_body
from oncebox.accept.door import Door
from oncebox.accept.incoming import Incoming, read_headers
from oncebox.accept.refusal import Refusals
from oncebox.errors import IdConflict, Overloaded, Rejected, StorageFull
from oncebox.model import Arrival, Refused, Reply, Stored, receipt
from oncebox.problem import CONTENT_TYPE, problem
from oncebox.store import Store

JSON = "application/json"
Pairs = tuple[tuple[str, str], ...]
_REPLAYED: Pairs = (("idempotent-replayed", "true"),)
# A wrong secret or pointer of ours would lose these for good: many senders never try a 4xx again.
_KEPT = (400, 401)


class Request(msgspec.Struct, frozen=True):
    """A request whose body has not been read yet. `headers` and `repeated` as in Incoming; `declared` is its length."""

    method: str
    url: str
    query: str
    headers: dict[str, str]
    repeated: frozenset[str]
    receive: Receive
    declared: int | None = None
    peer: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """What the sender is told."""

    status: int
    content_type: str
    body: bytes
    headers: Pairs = ()


def now_us() -> int:
    """The wall clock in unix microseconds."""
    return time_ns() // 1000


class Inbox:
    """The configured doors in front of one store.

    `doors` may be exchanged at any time; a request is judged by those it came to. `last_used` says when each secret
    (source, number) last proved a request genuine, in unix microseconds.
    """

    def __init__(self, doors: Mapping[str, Door], store: Store, clock: Callable[[], int] = now_us) -> None:
        self.doors = doors
        self.store = store
        self.clock = clock
        self.refusals = Refusals(store.refuse, clock)
        self.last_used: dict[tuple[str, int], int] = {}

    async def accept(self, source: str, request: Request) -> Answer:
        """Take in a request and answer it, with a 2xx only when its events are on disk. Raises ClientGone."""
        door = self.doors.get(source)
        if door is None:
            return self._turn_away(None, Rejected(404, "unknown-source", "there is no source of this name here"))
        try:
            door.admit(request.method, request.headers, request.peer)
            body = await read_body(request.receive, door.limit, request.declared)
        except Rejected as why:
            return self._turn_away(door, why)
        return await self._judge(door, _incoming(request, door, body, self.clock()))

    async def again(self, refused: Refused, *, trust: bool = False) -> Answer:
        """Judge a refused request once more, by today's doors and the time of its arrival; `trust` skips signatures."""
        door = self.doors.get(refused.source)
        if door is None:
            return self._turn_away(None, Rejected(404, "unknown-source", "there is no source of this name any more"))
        query, body = refused.url.partition("?")[2], refused.body
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refused.headers]
        headers, repeated = read_headers(pairs)
        incoming = Incoming(refused.method, refused.url, query, headers, repeated, body, body, refused.at)
        return await self._judge(door.trusting() if trust else door, incoming, known=True)

    async def _judge(self, door: Door, incoming: Incoming, *, known: bool = False) -> Answer:
        """The checks in their order; a request is refused for the first that fails, replays included.

        A `known` one has been refused before, and is neither kept nor counted again.
        """
        try:
            incoming = door.open(incoming)
            reply = door.greet(incoming)
            if reply is not None:
                return Answer(reply.status, reply.content_type, reply.body, reply.headers)
            verified = door.verify(incoming)
            if verified.secret >= 0:
                self.last_used[door.source, verified.secret] = incoming.arrived
            arrivals = door.arrivals(incoming, verified.scheme)
            stored = await self.store.accept(arrivals) if arrivals else []
        except Rejected as why:
            return refusal(door, why) if known else self._turn_away(door, why, incoming)
        except (Overloaded, IdConflict) as error:
            return self._turn_away(door, _refusal_of(error))
        return batch_answer(arrivals, stored, door.reply) if door.is_batch(incoming) else answer(arrivals, stored)

    def _turn_away(self, door: Door | None, why: Rejected, incoming: Incoming | None = None) -> Answer:
        """Count a refusal, keep its request if a mistake of ours could be behind it, and say why."""
        if door is None or incoming is None or why.status not in _KEPT:
            self.refusals.count(door.source if door else "", why.slug)
        else:
            self.refusals.keep(door.refused(incoming, why))
        return refusal(door, why)


def _incoming(request: Request, door: Door, body: bytes, now: int) -> Incoming:
    url = request.url
    if door.url is not None:
        # What the sender was told to call is what it signs, whatever a proxy made of it.
        url = door.url if "?" in door.url or not request.query else f"{door.url}?{request.query}"
    return Incoming(request.method, url, request.query, request.headers, request.repeated, body, body, now)


def _refusal_of(error: Overloaded | IdConflict) -> Rejected:
    if isinstance(error, IdConflict):
        return Rejected(422, "id-conflict", str(error))
    slug = "storage-full" if isinstance(error, StorageFull) else "overloaded"
    return Rejected(503, slug, str(error), (("retry-after", str(error.retry_after)),))


def refusal(door: Door | None, why: Rejected) -> Answer:
    """The problem that a refused sender is answered, with the status that this sender wants for a wrong signature."""
    more = {"index": why.index} if isinstance(why, BadItem) else {}
    status = door.bad_signature if door is not None and why.slug == "bad-signature" else why.status
    return Answer(status, CONTENT_TYPE, problem(status, why.slug, why.detail, **more), why.headers)


def answer(arrivals: Sequence[Arrival], stored: Sequence[Stored]) -> Answer:
    """The receipt of one event, or the reply that its first call got: the same bytes for each replay."""
    (arrival,), (one,) = arrivals, stored
    headers = _REPLAYED if one.replayed else ()
    if one.reply is not None:
        return Answer(one.reply.status, one.reply.content_type, one.reply.body, headers)
    return Answer(202, JSON, receipt(arrival.source, one.id, one.received_at), headers)


def batch_answer(arrivals: Sequence[Arrival], stored: Sequence[Stored], reply: Reply | None) -> Answer:
    """The receipts of a batch in its order. It is a replay only if all of its items are.

    A sender with a reply of its own gets the first item's; one without any items gets `reply`.
    """
    headers = _REPLAYED if stored and all(one.replayed for one in stored) else ()
    reply = stored[0].reply if stored else reply
    if reply is not None:
        return Answer(reply.status, reply.content_type, reply.body, headers)
    pairs = zip(arrivals, stored, strict=True)
    receipts = [receipt(arrival.source, one.id, one.received_at) for arrival, one in pairs]
    return Answer(202, JSON, b"[" + b",".join(receipts) + b"]", headers)
