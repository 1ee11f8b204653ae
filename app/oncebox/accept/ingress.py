"""Ingress: the ASGI endpoint that senders call."""

from __future__ import annotations

import anyio
from litestar import asgi
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from oncebox.accept.body import ClientGone
from oncebox.accept.inbox import Answer, Inbox, Request
from oncebox.accept.incoming import read_headers
from oncebox.problem import CONTENT_TYPE, problem

# Seconds: for the rest of a refused body, and for the next piece of it.
LINGER, SILENCE = 5.0, 1.0
_CLOSE = ("connection", "close")
_NOWHERE = Answer(404, CONTENT_TYPE, problem(404, "not-found", "events are sent to /in/ and the name of a source"))


def create_ingress(inbox: Inbox, *, path: str = "/in") -> ASGIRouteHandler:
    """The handler of everything below `path`."""

    # Mounted, not routed: a routed handler costs as much again as all the rest of a request.
    @asgi(path, is_mount=True, copy_scope=False)
    async def ingress(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await send({"type": "websocket.close", "code": 1000, "reason": ""})
            return
        # Litestar leaves what follows the mount, with a slash at both ends: "/demo/".
        name = scope["path"][1:-1] if scope["path"][0] == "/" else ""
        await _serve(inbox, name, scope, receive, send)

    return ingress


def in_front_of(app: ASGIApp, inbox: Inbox, *, path: str = "/in") -> ASGIApp:
    """The application with its ingress before its routing, which costs a third of a request that needs none of it."""
    start = f"{path}/"
    skip = len(start)

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["path"].startswith(start):
            await _serve(inbox, scope["path"][skip:].strip("/"), scope, receive, send)
        else:
            await app(scope, receive, send)

    return entry


async def _serve(inbox: Inbox, name: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
    try:
        if not name or "/" in name:
            answer = _NOWHERE
        else:
            answer = await inbox.accept(name, read_request(scope, receive))
    except ClientGone:
        return
    await _send(send, answer, receive)


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


async def _send(send: Send, answer: Answer, receive: Receive) -> None:
    headers = [(b"content-type", answer.content_type.encode("latin-1"))]
    if answer.status != 204:  # RFC 9110, 8.6
        headers.append((b"content-length", b"%d" % len(answer.body)))
    for name, value in answer.headers:
        headers.append((name.encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    closes = _CLOSE in answer.headers
    await send({"type": "http.response.body", "body": answer.body, "more_body": closes})
    if closes:
        await _hear_out(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _hear_out(receive: Receive) -> None:
    """Let who is still sending finish, within bounds: a close over unread bytes is a reset, which eats the answer."""
    with anyio.move_on_after(LINGER):
        while True:
            message = None
            with anyio.move_on_after(SILENCE):
                message = await receive()
            if message is None or not message.get("more_body", False):
                return
