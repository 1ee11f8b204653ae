"""Settling: what a person says about deliveries that wait: they were made elsewhere, or never will be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from oncebox.clock import wall_clock
from oncebox.model import moment
from oncebox.operate import filters
from oncebox.operate.api import ADMIN
from oncebox.operate.shape import Json
from oncebox.operate.targets import MOST_WORDS, Known, check_known
from oncebox.store.acts import act
from oncebox.store.settlement import STEP, Settlement, count_waiting, settle_some
from oncebox.store.sqlite import SQLiteStore
from oncebox.store.targets import MOST

STATES = ("done", "dead")

Asked = Request[Any, Any, Any]


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"state": "as"}):
    """The body of `POST /api/targets/{name}/settle`: what was due before then is done, or dead."""

    before: str
    state: str
    why: str = ""
    dry_run: bool = False


def read_settle_order(body: bytes) -> Order:
    """The JSON of a request. Raises Rejected 400 that says what is wrong."""
    try:
        order = msgspec.json.decode(body.strip() or b"{}", type=Order)
    except msgspec.DecodeError as error:
        raise filters.bad_request(
            f'the body is such as {{"before": "2026-12-02T01:02:03Z", "as": "done"}}: {error}'
        ) from None
    if order.state not in STATES:
        raise filters.bad_request(f'as: "{order.state[:60]}" is none; what waits can be settled as done or as dead')
    if len(order.why) > MOST_WORDS:
        raise filters.bad_request(f"why: has {len(order.why)} characters; {MOST_WORDS} are enough")
    return order


async def settle_waiting(
    store: SQLiteStore, known: Sequence[Known], name: str, order: Order, *, who: str, now: int
) -> Json:
    """Settle what a target was due before a time, some at a time, without sending it; what runs now is left to end.

    Raises Rejected 404 for a target that nobody is and that has nothing.
    """
    before = filters.read_time({"before": order.before}, "before", now)
    assert before is not None
    if all(one.name != name for one in known):
        counted = await store.read(lambda db: count_waiting(db, name, before, 1))
        check_known(name, known, (name,) if counted else await store.paused())
    shown: Json = {"name": name, "as": order.state, "before": moment(before)}
    if order.dry_run:
        counted = await store.read(lambda db: count_waiting(db, name, before, MOST))
        return {**shown, "settled": 0, "matched": counted, "counted_all": counted < MOST}
    settled = await _settle(store, Settlement(name, before, order.state, _told(order, who)), who, now)
    store.writer.tell({name})
    return {**shown, "settled": settled, "matched": settled, "counted_all": True}


async def _settle(store: SQLiteStore, wanted: Settlement, who: str, now: int) -> int:
    """Each step with its act, so that what happened is on record whenever it ends."""
    settled = 0

    def work(db: Any, books: Any) -> int:
        some = settle_some(db, wanted, now, books, store.routing.skipping)
        if some:
            detail = f"{wanted.target}: {some} due before {moment(wanted.before)} as {wanted.state}"
            act(db, who, "deliveries settled", f"{detail}: {wanted.why}", now)
        return some

    while True:
        some = await store.change(work)
        settled += some
        if some < STEP:
            return settled


def _told(order: Order, who: str) -> str:
    return f"settled as {order.state} by {who}" + (f": {order.why}" if order.why else "")


def create_settle_routes(
    store: SQLiteStore, known: Sequence[Known], now: Callable[[], int] = wall_clock
) -> list[HTTPRouteHandler]:
    """The route that settles what waits."""

    @post(
        "/targets/{name:str}/settle",
        opt=ADMIN,
        summary="Take what was due before a time as done, or as dead",
        status_code=200,
    )
    async def settle(request: Asked, name: FromPath[str]) -> Response[Any]:
        order = read_settle_order(await request.body())
        who = str(request.state["who"].name)
        found = await settle_waiting(store, known, name, order, who=who, now=now())
        return Response(msgspec.json.encode(found), media_type=MediaType.JSON, headers={"cache-control": "no-store"})

    return [settle]
