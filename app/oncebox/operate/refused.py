"""Refused: accepting after all what was turned away, once the mistake behind it is mended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from litestar import MediaType, Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from oncebox.clock import wall_clock
from oncebox.errors import Rejected
from oncebox.model import Refused, moment
from oncebox.operate.guard import MAY
from oncebox.operate.look import not_found
from oncebox.operate.shape import Json
from oncebox.store import refusals
from oncebox.store.sqlite import SQLiteStore

LARGEST = (1 << 63) - 1
_WRITTEN = 'the body is empty, or {"trust": true} to leave the signature out of account'


class Said(Protocol):
    """What the sender would have been told."""

    @property
    def status(self) -> int: ...
    @property
    def content_type(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> tuple[tuple[str, str], ...]: ...


class Again(Protocol):
    """Judges a refused request once more, by today's configuration and the time of its arrival."""

    def __call__(self, refused: Refused, *, trust: bool) -> Awaitable[Said]: ...


class Trust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of the request."""

    trust: bool = False


async def accept_refused(store: SQLiteStore, again: Again, n: int, *, trust: bool, who: str, now: int) -> Json:
    """Accept one refused request; its id still decides, so a second time is a replay.

    Raises Rejected: 404 where there is none, 422 where it is refused again, with today's reason.
    """
    refused = await store.read(lambda db: refusals.load(db, n)) if 0 < n <= LARGEST else None
    if refused is None:
        raise not_found(f"there is no refused request {n}; they are kept for 7 days, the newest 200 of each source")
    said = await again(refused, trust=trust)
    if said.status >= 300:
        raise _refused_again(n, said)
    detail = f"{n} of {refused.source}{', signature not looked at' if trust else ''}"
    await store.change(lambda db, _: refusals.accepted(db, n, now, who, detail))
    return {
        "n": n,
        "source": refused.source,
        "accepted_at": moment(now),
        "replayed": any(name == "idempotent-replayed" for name, _ in said.headers),
        "reply": {
            "status": said.status,
            "content_type": said.content_type,
            "body": said.body.decode("utf-8", "replace"),
        },
    }


def _refused_again(n: int, said: Said) -> Rejected:
    problem = msgspec.json.decode(said.body, type=dict[str, Any])
    slug = str(problem["type"]).rpartition(":")[2]
    status = said.status if said.status == 503 else 422
    return Rejected(status, slug, f"request {n} is refused again: {problem['detail']}", said.headers)


def create_refused_routes(
    store: SQLiteStore, again: Again, now: Callable[[], int] = wall_clock
) -> list[HTTPRouteHandler]:
    """The routes below /api that accept refused requests."""

    @post("/refused/{n:int}/accept", opt={MAY: "admin"}, summary="Accept a refused request after all", status_code=200)
    async def accept(request: Request[Any, Any, Any], n: FromPath[int]) -> Response[Any]:
        trust = _trust(await request.body())
        who = request.state["who"].name
        found = await accept_refused(store, again, n, trust=trust, who=who, now=now())
        headers = {"cache-control": "no-store"}
        return Response(msgspec.json.encode(found), media_type=MediaType.JSON, headers=headers)

    return [accept]


def _trust(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=Trust).trust if body.strip() else False
    except msgspec.DecodeError as error:
        raise Rejected(400, "bad-request", f"{error}; {_WRITTEN}") from None
