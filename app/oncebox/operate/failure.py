"""Failure: every error of the API and the pages as problem+json, Litestar's own too."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import ExceptionHandlersMap

from oncebox.errors import Overloaded, Rejected, StorageFull
from oncebox.problem import CONTENT_TYPE, problem
from oncebox.seldom import Seldom, kind_of

faults = Seldom(logging.getLogger("oncebox.operate"))

_SLUGS = {401: "unauthorized", 403: "unauthorized", 404: "not-found", 413: "too-large", 415: "bad-encoding"}
_DETAILS = {
    404: "there is nothing at this path; senders use /in/ and a source's name, people and programs /api/…",
    405: "this path does not take this method",
    413: "the body is larger than this path takes",
}
# Litestar's word for a client that hung up in its body: no fault of ours, and nobody reads the answer.
_GONE = "client disconnected prematurely"
_KEPT = ("allow", "www-authenticate", "retry-after")

Asked = Request[Any, Any, Any]


def of_rejected(_request: Asked, error: Rejected) -> Response[bytes]:
    """A refusal of ours."""
    return _answer(error.status, problem(error.status, error.slug, error.detail), dict(error.headers))


def of_litestar(_request: Asked, error: HTTPException) -> Response[bytes]:
    """A refusal of Litestar's: unknown path, wrong method, too large, unfit parameters."""
    status = error.status_code
    if status >= 500 and error.detail != _GONE:
        return of_anything(_request, error)
    headers = {name: text for name, text in (error.headers or {}).items() if name.lower() in _KEPT}
    if status == 405:
        headers = {name: _in_order(text) if name.lower() == "allow" else text for name, text in headers.items()}
    detail = _DETAILS.get(status) or _details(error)
    return _answer(status, problem(status, _SLUGS.get(status, "bad-request"), detail), headers)


def _in_order(names: str) -> str:
    """Litestar lists the methods of a path in another order in each process."""
    return ", ".join(sorted(names.split(", ")))


def _details(error: HTTPException) -> str:
    """What is wrong with which parameter, where Litestar says so."""
    extra = error.extra if isinstance(error.extra, list) else []
    named = [f"{one.get('key')}: {one.get('message')}" for one in extra if isinstance(one, dict)]
    return "; ".join(named) or error.detail


def of_overloaded(_request: Asked, error: Overloaded) -> Response[bytes]:
    """The store cannot take it now."""
    slug = "storage-full" if isinstance(error, StorageFull) else "overloaded"
    return _answer(503, problem(503, slug, str(error)), {"retry-after": str(error.retry_after)})


def of_anything(request: Asked, error: Exception) -> Response[bytes]:
    """A fault of ours: told in the log, though not each time; who asked is told no more than that."""
    faults.say(time.monotonic(), kind_of(error), f"{request.method} {request.url.path!a} failed", error)
    body = {"type": "about:blank", "title": "Internal Server Error", "status": 500, "detail": "see the server's log"}
    return _answer(500, msgspec.json.encode(body), {})


def _answer(status: int, body: bytes, headers: dict[str, str]) -> Response[bytes]:
    return Response(body, status_code=status, media_type=CONTENT_TYPE, headers={"cache-control": "no-store", **headers})


EXCEPTION_HANDLERS: ExceptionHandlersMap = {
    Rejected: of_rejected,
    Overloaded: of_overloaded,
    HTTPException: of_litestar,
    Exception: of_anything,
}
