"""Mend: the routes below /api that change what happens: reruns, pauses; and the lists that belong to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from litestar import MediaType, Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from oncebox.clock import wall_clock
from oncebox.condition import Condition
from oncebox.config import Config
from oncebox.operate import filters, rerunning
from oncebox.operate import targets as aims
from oncebox.operate.api import ADMIN, READ, given_in, text
from oncebox.operate.settling import create_settle_routes
from oncebox.operate.shape import Json
from oncebox.operate.targets import Known
from oncebox.store.sqlite import SQLiteStore

Asked = Request[Any, Any, Any]
Limit = Annotated[str | None, text("limit", "1 to 500, else 50")]
Cursor = Annotated[str | None, text("cursor", '"next" of the page before')]


def create_rerun_routes(
    store: SQLiteStore, known: Sequence[Known], ring: Callable[[], None], now: Callable[[], int] = wall_clock
) -> list[HTTPRouteHandler]:
    """The routes that run history again; `ring` tells the feeder."""
    names = [one.name for one in known]

    @post("/events/{seq:int}/rerun", opt=ADMIN, summary="Run one event again", status_code=202)
    async def rerun_event(request: Asked, seq: FromPath[int]) -> Response[Any]:
        order = rerunning.read_one_order(await request.body())
        made = await rerunning.rerun_event(store, seq, order, names, who=_who(request), now=now())
        ring()
        return _made(request, made)

    @post("/reruns", opt=ADMIN, summary="Run events again, by numbers or by a filter", status_code=202)
    async def rerun_many(request: Asked) -> Response[Any]:
        order = rerunning.read_order(await request.body())
        made = await rerunning.order_rerun(store, order, names, who=_who(request), now=now())
        if order.dry_run:
            return _json(made)
        ring()
        return _made(request, made)

    @get("/reruns", opt=ADMIN, summary="Reruns, newest first")
    async def listed(request: Asked, limit: Limit = None, cursor: Cursor = None) -> Response[Any]:
        return _json(await store.read(rerunning.reruns(given_in(request))))

    @get("/reruns/{number:int}", opt=ADMIN, summary="One rerun, and how far it has got")
    async def one(request: Asked, number: FromPath[int]) -> Response[Any]:
        filters.check_names(given_in(request), ())
        return _json(await store.read(rerunning.rerun(number)))

    @delete("/reruns/{number:int}", opt=ADMIN, summary="Cancel a rerun: nothing more is queued", status_code=200)
    async def cancel(request: Asked, number: FromPath[int]) -> Response[Any]:
        cancelled = await rerunning.cancel_rerun(store, number, who=_who(request), now=now())
        ring()
        return _json(cancelled)

    return [rerun_event, rerun_many, listed, one, cancel]


def create_target_routes(
    config: Config,
    store: SQLiteStore,
    known: Sequence[Known],
    conditions: Callable[[], Mapping[str, Condition]],
    now: Callable[[], int] = wall_clock,
) -> list[HTTPRouteHandler]:
    """The routes about targets, sources and acts; `conditions` says how those fare that are not simply ready."""

    @get("/targets", opt=READ, summary="Targets: state, what waits, what is dead")
    async def targets(request: Asked) -> Response[Any]:
        filters.check_names(given_in(request), ())
        return _json(await store.read(aims.targets(known, conditions())))

    @post("/targets/{name:str}/pause", opt=ADMIN, summary="Start nothing more for a target", status_code=200)
    async def pause(request: Asked, name: FromPath[str]) -> Response[Any]:
        why = aims.read_why(await request.body())
        return _json(await aims.pause(store, known, name, why, who=_who(request), now=now()))

    @post("/targets/{name:str}/resume", opt=ADMIN, summary="Undo a pause", status_code=200)
    async def resume(request: Asked, name: FromPath[str]) -> Response[Any]:
        return _json(await aims.resume(store, known, name, who=_who(request), now=now()))

    @get("/sources", opt=READ, summary="Sources and what each has sent")
    async def sources(request: Asked) -> Response[Any]:
        filters.check_names(given_in(request), ())
        return _json(await store.read(aims.sources(config, sorted(store.routing.internal), now())))

    @get("/acts", opt=ADMIN, summary="What people did, newest first")
    async def acts(request: Asked, limit: Limit = None, cursor: Cursor = None) -> Response[Any]:
        return _json(await store.read(aims.acts(given_in(request))))

    return [targets, pause, resume, *create_settle_routes(store, known, now), sources, acts]


def _who(request: Asked) -> str:
    return str(request.state["who"].name)


def _made(request: Asked, rerun: Json) -> Response[Any]:
    root = request.scope.get("root_path", "").rstrip("/")
    return _json(rerun, status=202, location=f"{root}/api/reruns/{rerun['id']}")


def _json(value: Json, *, status: int = 200, **headers: str) -> Response[Any]:
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type=MediaType.JSON,
        headers={"cache-control": "no-store", **headers},
    )
