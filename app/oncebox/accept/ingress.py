"""Ingress: the ASGI endpoint that senders call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import unquote

from litestar import asgi
from litestar.enums import ScopeType
from litestar.handlers import ASGIRouteHandler
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from oncebox.accept.answer import FAILED
from oncebox.accept.inbox import Answer, Inbox, Request
from oncebox.accept.incoming import Incoming, read_headers
from oncebox.body import ClientGone, Hearing, hear_out
from oncebox.content import EMPTY
from oncebox.problem import CONTENT_TYPE, problem

Pairs = tuple[tuple[str, str], ...]
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


class Front:
    """The application with its ingress before its routing, which costs a third of a request that needs none of it.

    A server that can (`wire`) hands whole requests over by `direct`.
    """

    def __init__(self, app: ASGIApp, inbox: Inbox, path: str = "/in") -> None:
        self._app = app
        self._inbox = inbox
        self._start = f"{path}/"
        self._prefix = self._start.encode()
        self._skip = len(self._start)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["path"].startswith(self._start):
            await _serve(self._inbox, scope["path"][self._skip :].strip("/"), scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def takes(self, method: bytes, url: bytes) -> bool:
        """Whether a request that has come whole may be answered by `direct`."""
        return method == b"POST" and url.startswith(self._prefix) and b"#" not in url

    def direct(
        self,
        url: bytes,
        pairs: Iterable[tuple[bytes, bytes]],
        body: bytes,
        scheme: str,
        client: tuple[str, int] | None,
        reply: Callable[[int, str, bytes, Pairs], None],
    ) -> None:
        """Answer a POST by one call of `reply`, now or when its events are on disk."""
        headers, repeated = read_headers(pairs)
        target = url.decode("latin-1")
        path, _, query = target.partition("?")
        name = (unquote(path) if "%" in path else path)[self._skip :].strip("/")
        inbox = self._inbox
        called = f"{scheme}://{headers.get('host', '')}{target if query else path}"
        incoming = Incoming("POST", called, query, headers, repeated, body, body, inbox.clock())

        def tell(answer: Answer) -> None:
            reply(answer.status, answer.content_type, answer.body, answer.headers)

        if not name or "/" in name:
            tell(_NOWHERE)
        else:
            inbox.take(name, incoming, client[0] if client else None, tell)


async def _serve(inbox: Inbox, name: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
    heard = Hearing(receive)
    try:
        if not name or "/" in name:
            answer = _NOWHERE
        else:
            answer = await inbox.accept(name, read_request(scope, heard))
    except ClientGone:
        return
    except Exception as error:  # noqa: BLE001  # it is told, though not each time
        inbox.failed(name, error)
        answer = FAILED
    await _send(send, answer, heard)


def read_request(scope: HTTPScope, receive: Receive | Hearing) -> Request:
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


async def _send(send: Send, answer: Answer, heard: Hearing) -> None:
    headers = [(b"content-type", answer.content_type.encode("latin-1"))]
    body = answer.body if answer.status not in EMPTY else b""
    if answer.status != 204:  # RFC 9110, 8.6
        headers.append((b"content-length", b"%d" % len(body)))
    for name, value in answer.headers:
        headers.append((name.encode("latin-1"), value.encode("latin-1")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    closes = _CLOSE in answer.headers
    await send({"type": "http.response.body", "body": body, "more_body": closes})
    if closes:
        await hear_out(heard)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
