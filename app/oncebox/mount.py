"""Mount: a part of an application's paths, taken out before anything of the application's sees a request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote

from litestar import Litestar
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from oncebox.origin import called, origin_form
from oncebox.problem import CONTENT_TYPE, problem

Hook = Callable[[Message, Scope], Awaitable[Any]]
_SLASHES = re.compile("//+")
LOST = problem(
    400,
    "bad-body",
    "the server in front of this application drops the body of a request that asks for another protocol; send it "
    "without the Upgrade header, as with HttpClient.Version.HTTP_1_1 in Java",
)


class Mount:
    """An ASGI application below `path`."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        self._path = path
        self._below = f"{path}/"
        self._app = app

    def takes(self, scope: Scope) -> bool:
        """Whether a request is for what is mounted."""
        return not self._path or f"{path_in(scope)}/".startswith(self._below)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; `path` becomes a part of its root, as ASGI has it."""
        path, root = path_in(scope), scope.get("root_path", "")
        path = path if path.startswith("/") else f"/{path}"  # the asterisk of OPTIONS is nowhere
        inner = {
            **scope,
            "path": f"{root}{path}",
            "root_path": f"{root}{self._path}",
            "raw_path": scope.get("raw_path") or quote(f"{root}{path}").encode(),
            "state": {},
        }
        body = Announced(scope, receive)
        await self._app(inner, body.receive, send)  # type: ignore[arg-type]  # of the kind that came
        if body.lost:
            await _refuse(send)


@contextmanager
def beside(app: Litestar, mount: Mount, announce: Callable[[str], None]) -> Iterator[None]:
    """Serve a mount beside an application for as long as the block lasts: outside its middleware, CORS, sessions,
    limits, exception handlers and hooks before sending.

    `announce` is told the application's address on this machine, which only a request can say, as soon as one does.
    """
    handler, hooks = app.asgi_handler, app.before_send
    address = ""

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal address
        if not address and (address := local_address(scope)):
            announce(address)
        asked = in_origin_form(scope)
        if mount.takes(asked):
            await mount(asked, receive, send)
        else:
            await handler(scope, receive, send)

    app.asgi_handler = entry
    app.before_send = [_for_others(hook, mount) for hook in hooks]
    try:
        yield
    finally:
        app.asgi_handler, app.before_send = handler, hooks


def _for_others(hook: Hook, mount: Mount) -> Hook:
    async def gated(message: Message, scope: Scope) -> None:
        if not mount.takes(scope):
            await hook(message, scope)

    return gated


def path_in(scope: Scope) -> str:
    """The path of a request below the application's root, each slash once; servers differ in whether it has the root
    before it."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    if root and f"{path}/".startswith(f"{root}/"):
        path = path[len(root) :]
    return _SLASHES.sub("/", path) if "//" in path else path


def in_origin_form(scope: Scope) -> Scope:
    """A request for a whole URL as one for its path (RFC 9112, 3.2.2): not every server makes one of the other."""
    if "://" not in scope["path"]:
        return scope
    root = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path") or scope["path"].encode()
    whole = origin_form(raw.removeprefix(root.encode()))
    if whole is None:
        return scope
    path, host = whole
    asked = {"path": f"{root}{unquote(path)}", "raw_path": root.encode() + path}
    return {**scope, **asked, "headers": called(scope["headers"], host)}  # type: ignore[return-value]  # of its kind


class Announced:
    """The body of a request, held to what the sender announced: uvicorn takes the body of a request that asks for
    another protocol (Java's client asks in each) for that protocol, and gives an empty one."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.lost = False
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"1" if b"transfer-encoding" in headers else b"")
        self._missing = int(length) if length.isdigit() else 0
        self._receive = receive
        self.receive: Receive = self._count if b"upgrade" in headers and self._missing else receive

    async def _count(self) -> Any:
        """The next piece; in place of an end that comes too early, that the sender has gone."""
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._missing -= len(message["body"])
        self.lost = self._missing > 0 and not message["more_body"]
        return {"type": "http.disconnect"} if self.lost else message


async def _refuse(send: Send) -> None:
    head = ((b"content-type", CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(LOST)))
    await send({"type": "http.response.start", "status": 400, "headers": head})
    await send({"type": "http.response.body", "body": LOST, "more_body": False})


def local_address(scope: Scope) -> str:
    """The address that a request came to, if it is one that commands on this machine can use; else empty."""
    host, port = scope.get("server") or ("", None)
    if not port or scope["type"] != ScopeType.HTTP or scope["scheme"] != "http":
        return ""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        return ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}" if loopback else ""
