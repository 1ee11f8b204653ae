"""Answer: what a sender is told of its request. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncebox.accept.batch import BadItem
from oncebox.accept.door import Door
from oncebox.errors import Rejected
from oncebox.model import Arrival, Reply, Stored, receipt
from oncebox.problem import CONTENT_TYPE, blank, problem

JSON = "application/json"
Pairs = tuple[tuple[str, str], ...]
_REPLAYED: Pairs = (("idempotent-replayed", "true"),)


class Answer(msgspec.Struct, frozen=True):
    """What the sender is told."""

    status: int
    content_type: str
    body: bytes
    headers: Pairs = ()


_LOGGED = "the request could not be judged; send it again later. The server's log says why"
FAILED = Answer(500, CONTENT_TYPE, blank(500, _LOGGED))


def refusal(door: Door | None, why: Rejected) -> Answer:
    """The problem that a refused sender is answered, with the status that this sender wants for a wrong signature."""
    more = {"index": why.index} if isinstance(why, BadItem) else {}
    unproved = (why.status, why.slug) == (401, "bad-signature")
    status = door.bad_signature if door is not None and unproved else why.status
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
