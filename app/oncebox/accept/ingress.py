"""Ingress: the ASGI endpoint that senders call."""

from __future__ import annotations

from litestar import asgi
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler
from litestar.types import HTTPScope, Receive, Scope, Send

from oncebox.accept.body import ClientGone
from oncebox.accept.inbox import Answer, Inbox, Request
from oncebox.accept.incoming import read_headers
from oncebox.problem import CONTENT_TYPE, problem

_NOWHERE = Answer(404, CONTENT_TYPE, problem(404, "not-found", "events are sent to /in/ and the name of a source"))


def create_ingress(inbox: Inbox, *, path: str = "/in") -> ASGIRouteHandler:
    """The handler of everything below `path`."""

    # Mounted, not routed: a routed handler costs as much again as all the rest of a request.
    @asgi(path, is_mount=True, copy_scope=False)
    async def ingress(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await send({"type": "websocket.close", "code": 1000, "reason": ""})
            return
        try:
            answer = await _answer(inbox, scope, receive)
        except ClientGone:
            return
        await _send(send, answer)

    return ingress


async def _answer(inbox: Inbox, scope: HTTPScope, receive: Receive) -> Answer:
    # Litestar leaves what follows the mount, with a slash at both ends: "/demo/".
    path = scope["path"]
    name = path[1:-1]
    if not name or "/" in name or path[0] != "/":
        return _NOWHERE
    return await inbox.accept(name, read_request(scope, receive))


def read_request(scope: HTTPScope, receive: Receive) -> Request:
    """A request as ASGI gives it; its URL is what it says of itself, byte for byte from the path on.

    It counts only where no URL is configured: anybody may send any Host.
    """
    headers, repeated = read_headers(scope["headers"])
    query = scope["query_string"].decode("latin-1")
    target = scope["raw_path"].decode("latin-1")
    base = f"{scope['scheme']}://{headers.get('host', '')}"
    length = headers.get("content-length", "")
    client = scope["client"]
    return Request(
        scope["method"],
        f"{base}{target}?{query}" if query else f"{base}{target}",
        query,
        headers,
        repeated,
        receive,
        int(length) if length.isdecimal() and len(length) < 20 else None,
        client[0] if client else None,
    )


async def _send(send: Send, answer: Answer) -> None:
    headers = [(b"content-type", answer.content_type.encode("latin-1"))]
    if answer.status != 204:  # RFC 9110, 8.6
        headers.append((b"content-length", b"%d" % len(answer.body)))
    for name, value in answer.headers:
        headers.append((name.encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
