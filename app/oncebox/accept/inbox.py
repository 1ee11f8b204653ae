"""Inbox: the front half. A request is checked, read, stored and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from oncebox.accept.answer import Answer, answer, batch_answer, refusal
from oncebox.accept.body import Receive, read_body
from oncebox.accept.door import Door
from oncebox.accept.incoming import Incoming, read_headers
from oncebox.accept.refusal import Refusals
from oncebox.clock import wall_clock
from oncebox.errors import IdConflict, Overloaded, Rejected, StorageFull
from oncebox.model import Refused
from oncebox.store import Store

__all__ = ["Answer", "Inbox", "Request"]

# A wrong secret or pointer of ours would lose these for good: many senders never try a 4xx again.
_KEPT = (400, 401)
_NOT_KEPT = (
    "the sender's secret comes with each request and is never stored, so this one cannot be proved genuine again; look "
    "at it, and accept it with --trust if it is what it says"
)


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


class Inbox:
    """The configured doors in front of one store.

    `doors` may be exchanged at any time; a request is judged by those it came to. `last_used` says when each secret
    (source, number) last proved a request genuine, in unix microseconds.
    """

    def __init__(self, doors: Mapping[str, Door], store: Store, clock: Callable[[], int] = wall_clock) -> None:
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
        incoming = again(refused, door)
        if door.secretless and not trust:
            # Its credential was left out of what is kept, so nothing could prove it genuine a second time.
            return refusal(door, Rejected(401, "bad-signature", _NOT_KEPT))
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
        source = door.source if door else ""
        if door and incoming and why.status in _KEPT and self.refusals.wants(source, len(incoming.body)):
            self.refusals.keep(door.refused(incoming, why))
        else:
            self.refusals.count(source, why.slug)
        return refusal(door, why)


def _incoming(request: Request, door: Door, body: bytes, now: int) -> Incoming:
    url = door.signed_url(request.url, request.query)
    return Incoming(request.method, url, request.query, request.headers, request.repeated, body, body, now)


def again(refused: Refused, door: Door) -> Incoming:
    """A refused request as it came, at the time of its arrival, under the URL that is configured today."""
    query = refused.url.partition("?")[2]
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refused.headers]
    headers, repeated = read_headers(pairs)
    url, body = door.signed_url(refused.url, query), refused.body
    return Incoming(refused.method, url, query, headers, repeated, body, body, refused.at)


def _refusal_of(error: Overloaded | IdConflict) -> Rejected:
    if isinstance(error, IdConflict):
        return Rejected(422, "id-conflict", str(error))
    slug = "storage-full" if isinstance(error, StorageFull) else "overloaded"
    return Rejected(503, slug, str(error), (("retry-after", str(error.retry_after)),))
