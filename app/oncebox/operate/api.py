"""API: what programs ask, and the two paths that say whether the server is alive and ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from litestar import HttpMethod, MediaType, Request, Response, Router, get, route
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from litestar.types import Guard

from oncebox.clock import wall_clock
from oncebox.config import Config
from oncebox.operate import filters, look
from oncebox.operate.failure import EXCEPTION_HANDLERS
from oncebox.operate.guard import MAY, create_guard
from oncebox.operate.shape import Json
from oncebox.store.queries import Body
from oncebox.store.sqlite import SQLiteStore

Health = Callable[[], Sequence[str]]
Asked = Request[Any, Any, Any]

ASKING = [HttpMethod.GET, HttpMethod.HEAD]
READ, READ_BODIES, ADMIN = {MAY: "read"}, {MAY: "read-bodies"}, {MAY: "admin"}
_NEVER_RENDERED = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cache-control": "no-store",
}


def text(name: str, description: str) -> Any:
    """A query parameter: documented here, read and judged in `filters`. Litestar keeps some names for itself."""
    return QueryParameter(name=name, description=description, required=False)


def create_api(
    config: Config,
    store: SQLiteStore,
    health: Health,
    more: Sequence[HTTPRouteHandler] = (),
    *,
    guards: Sequence[Guard] = (),
) -> list[Router | HTTPRouteHandler]:
    """The routes of /api (`more` of them from outside), /healthz and /readyz.

    `health` gives the reasons why the server is not ready; `guards` stand before /api, else the configured tokens do.
    """
    api = Router(
        "/api",
        route_handlers=[*_event_routes(store), *_other_routes(config, store), *more],
        guards=guards or [create_guard(config)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    return [api, *_health_routes(store, health)]


def _event_routes(store: SQLiteStore) -> list[HTTPRouteHandler]:
    @get("/events", opt=READ, summary="Events, newest first")
    async def events(
        request: Asked,
        source: Annotated[str | None, text("source", "exactly this source")] = None,
        type: Annotated[str | None, text("type", 'a glob such as "invoice.*"')] = None,
        state_: Annotated[str | None, text("state", "pending, parked, running, done, dead or unrouted")] = None,
        since: Annotated[str | None, text("since", 'RFC 3339, or back from now ("2h")')] = None,
        until: Annotated[str | None, text("until", 'RFC 3339, or back from now ("2h")')] = None,
        q: Annotated[str | None, text("q", "a part of the id or type")] = None,
        body_: Annotated[str | None, text("body", "a part of the body; see searched_to")] = None,
        limit: Annotated[str | None, text("limit", "1 to 500, else 50")] = None,
        cursor: Annotated[str | None, text("cursor", '"next" of the page before')] = None,
    ) -> Response[Json]:
        return _json(await store.read(look.events(given_in(request), wall_clock())))

    @get("/events/{seq:int}", opt=READ, summary="One event: receipt, replays, conflicts, deliveries, attempts")
    async def event(request: Asked, seq: FromPath[int]) -> Response[Json]:
        filters.check_names(given_in(request), ())
        return _json(await store.read(look.event(seq)))

    @get("/events/{seq:int}/body", opt=READ_BODIES, summary="The exact bytes", media_type="application/octet-stream")
    async def body(
        request: Asked,
        seq: FromPath[int],
        variant: Annotated[str | None, text("variant", "body_hash of a variant")] = None,
    ) -> Response[bytes]:
        given = given_in(request)
        filters.check_names(given, ("variant",))
        return _attachment(seq, await store.read(look.body(seq, given.get("variant"))))

    @get("/lookup", opt=READ, summary="One event by its sender's id")
    async def lookup(
        request: Asked,
        source: Annotated[str | None, text("source", "the source")] = None,
        id: Annotated[str | None, text("id", "the id, byte for byte")] = None,
    ) -> Response[Json]:
        return _json(await store.read(look.lookup(given_in(request))))

    return [events, event, body, lookup]


def _other_routes(config: Config, store: SQLiteStore) -> list[HTTPRouteHandler]:
    @get("/stats", opt=READ, summary="Totals and per-minute counts")
    async def stats(
        request: Asked, minutes: Annotated[str | None, text("minutes", "1 to 1440, else 60")] = None
    ) -> Response[Json]:
        return _json(await store.read(look.stats(given_in(request), wall_clock(), store.path, config.sources)))

    @get("/refused", opt=ADMIN, summary="Requests that were turned away, newest first")
    async def refused(
        request: Asked,
        source: Annotated[str | None, text("source", "exactly this source")] = None,
        limit: Annotated[str | None, text("limit", "1 to 500, else 50")] = None,
        cursor: Annotated[str | None, text("cursor", '"next" of the page before')] = None,
    ) -> Response[Json]:
        return _json(await store.read(look.refused(given_in(request))))

    @get("/refused/{n:int}", opt=ADMIN, summary="One of them with its headers and body")
    async def refused_request(request: Asked, n: FromPath[int]) -> Response[Json]:
        filters.check_names(given_in(request), ())
        return _json(await store.read(look.refused_request(n)))

    return [stats, refused, refused_request]


def _health_routes(store: SQLiteStore, health: Health) -> list[HTTPRouteHandler]:
    @route("/healthz", http_method=ASKING, summary="Alive; `boot` tells which process this is")
    async def healthz() -> Response[Json]:
        return _json({"alive": True, "boot": store.boot})

    @route("/readyz", http_method=ASKING, summary="Ready, or 503 with the reasons why not")
    async def readyz() -> Response[Json]:
        reasons = list(health())
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    return [healthz, readyz]


def given_in(request: Asked) -> Mapping[str, str]:
    """The query as it came; a parameter that stands there twice has no one meaning."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise filters.bad_request(f"{name[:60]}: is there more than once")
        given[name] = str(value)
    return given


def _json(value: Json, *, status: int = 200) -> Response[Any]:
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type=MediaType.JSON,
        headers={"cache-control": "no-store"},
    )


def _attachment(seq: int, body: Body) -> Response[bytes]:
    """Bytes to save. What the sender called them stands in headers of ours, so that no browser acts on it."""
    headers = {**_NEVER_RENDERED, "content-disposition": f'attachment; filename="{body.source}-{seq}"'}
    for name, value in (("oncebox-content-type", body.content_type), ("oncebox-encoding", body.encoding)):
        if value:
            headers[name] = _one_line(value)
    return Response(body.body, media_type="application/octet-stream", headers=headers)


def _one_line(value: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in value)
