"""Inbox: the front half. A request is checked, read, stored and answered."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from oncebox.accept.answer import FAILED, Answer, answer, batch_answer, refusal
from oncebox.accept.door import Door
from oncebox.accept.incoming import Incoming, read_headers
from oncebox.accept.refusal import Refusals
from oncebox.body import Receive, read_body, too_large
from oncebox.clock import wall_clock
from oncebox.errors import IdConflict, Overloaded, Rejected, StorageFull, StoreError
from oncebox.model import Arrival, Refused, Stored
from oncebox.seldom import Seldom, kind_of
from oncebox.store import Store

__all__ = ["Answer", "Inbox", "Request"]

# A wrong secret or pointer of ours would lose these for good: many senders never try a 4xx again. What has the id of
# another event and another body is kept, too, since one of the two is a mistake.
_KEPT = (400, 401, 422)
_UNSTORED = "the event could not be stored now; send it again later. The server's log says why"
_LOST = "an event is not stored, and its sender told to come back"
_NOT_KEPT = (
    "the sender's secret comes with each request and is never stored, so this one cannot be proved genuine again; look "
    "at it, and accept it with --trust if it is what it says"
)

log = logging.getLogger("oncebox.accept")


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


class Taken(msgspec.Struct, frozen=True):
    """A request that waits for the store."""

    door: Door
    incoming: Incoming
    arrivals: list[Arrival]
    stored: asyncio.Future[list[Stored]]
    known: bool


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
        self._faults = Seldom(log)

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
        return await self._answered(self._judge(door, _incoming(request, door, body, self.clock())))

    def take(self, source: str, incoming: Incoming, peer: str | None, reply: Callable[[Answer], None]) -> None:
        """Answer a request that came whole by one call of `reply`: with a 2xx only when its events are on disk."""
        door = self.doors.get(source)
        if door is None:
            reply(self._turn_away(None, Rejected(404, "unknown-source", "there is no source of this name here")))
            return
        try:
            door.admit(incoming.method, incoming.headers, peer)
            if len(incoming.body) > door.limit:
                raise too_large(door.limit)
        except Rejected as why:
            reply(self._turn_away(door, why))
            return
        if door.url is not None:
            incoming = msgspec.structs.replace(incoming, url=door.signed_url(incoming.url, incoming.query))
        taken = self._judge(door, incoming)
        if isinstance(taken, Answer):
            reply(taken)
        else:
            taken.stored.add_done_callback(lambda _: reply(self._told(taken)))

    async def again(self, refused: Refused, *, trust: bool = False) -> Answer:
        """Judge a refused request once more, by today's doors and the time of its arrival; `trust` skips signatures."""
        door = self.doors.get(refused.source)
        if door is None:
            return self._turn_away(None, Rejected(404, "unknown-source", "there is no source of this name any more"))
        incoming = again(refused, door)
        if door.secretless and not trust:
            # Its credential was left out of what is kept, so nothing could prove it genuine a second time.
            return refusal(door, Rejected(401, "bad-signature", _NOT_KEPT))
        return await self._answered(self._judge(door.trusting() if trust else door, incoming, known=True))

    def _judge(self, door: Door, incoming: Incoming, *, known: bool = False) -> Answer | Taken:
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
            if not arrivals:
                return batch_answer((), (), door.reply)
            return Taken(door, incoming, arrivals, self.store.accept(arrivals), known)
        except Rejected as why:
            return refusal(door, why) if known else self._turn_away(door, why, incoming)
        except StoreError as error:
            return self._turn_away(door, self._refusal_of(error))

    async def _answered(self, taken: Answer | Taken) -> Answer:
        if isinstance(taken, Answer):
            return taken
        with suppress(StoreError):
            await taken.stored
        return self._receipts(taken)

    def _told(self, taken: Taken) -> Answer:
        """Its answer, whatever happened: nobody else would hear of a fault."""
        try:
            return self._receipts(taken)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # it is told, though not each time
            self.failed(taken.door.source, error)
            return FAILED

    def _receipts(self, taken: Taken) -> Answer:
        error = taken.stored.exception()
        if error is None:
            stored, door = taken.stored.result(), taken.door
            if door.is_batch(taken.incoming):
                return batch_answer(taken.arrivals, stored, door.reply)
            return answer(taken.arrivals, stored)
        if not isinstance(error, StoreError):
            raise error
        why = self._refusal_of(error)
        if not isinstance(error, IdConflict):
            return self._turn_away(taken.door, why)
        return refusal(taken.door, why) if taken.known else self._turn_away(taken.door, why, taken.incoming)

    def failed(self, source: str, error: BaseException) -> None:
        """A fault of ours: told in the log, and not each time that it is met."""
        self._faults.say(time.monotonic(), kind_of(error), f"a request to source {source[:64]!a} failed", error)

    def _refusal_of(self, error: StoreError) -> Rejected:
        if isinstance(error, IdConflict):
            return Rejected(422, "id-conflict", str(error))
        if isinstance(error, Overloaded):
            slug = "storage-full" if isinstance(error, StorageFull) else "overloaded"
            return Rejected(503, slug, str(error), (("retry-after", str(error.retry_after)),))
        # The reason is about the file, which is no sender's business.
        self._faults.say(time.monotonic(), str(error), f"{_LOST}: {error}")
        return Rejected(503, "overloaded", _UNSTORED, (("retry-after", "60"),))

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
