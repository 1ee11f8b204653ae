"""Ingress: the ASGI endpoint that callers call."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from oncebox.body import ClientGone, Hearing, Receive, hear_out
from oncebox.perform.answer import Answer, of_error
from oncebox.perform.desk import PATH, Asked, Desk
from oncebox.seldom import Seldom, kind_of

Scope = MutableMapping[str, Any]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

faults = Seldom(logging.getLogger("oncebox.perform"))

_CLOSE = ("connection", "close")
_REPLAYED = (b"idempotent-replayed", b"true")
_NO_LENGTH = (204, 304)  # RFC 9110, 8.6


def in_front_of(app: App, desk: Desk) -> App:
    """The application with the operations before it: everything below `/do` of its root is theirs."""
    start = f"{PATH}/"

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        path = below_root(scope) if scope["type"] == "http" else ""
        if path.startswith(start):
            await _serve(desk, path[len(start) :].removesuffix("/"), scope, receive, send)
        else:
            await app(scope, receive, send)

    return entry


def below_root(scope: Scope) -> str:
    """The path of a request below the application's root, which may or may not stand before it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


async def _serve(desk: Desk, name: str, scope: Scope, receive: Receive, send: Send) -> None:
    heard = Hearing(receive)
    asked = Asked(name, scope["method"], scope["query_string"].decode("latin-1"), scope["headers"], heard)
    try:
        answer = await desk.serve(asked)
    except ClientGone:
        return
    except Exception as error:  # noqa: BLE001  # it is told, though not each time
        faults.say(time.monotonic(), kind_of(error), f"a call of operation {name[:64]!a} failed", error)
        answer = of_error(error)
    await _send(send, answer, heard)


async def _send(send: Send, answer: Answer, heard: Hearing) -> None:
    result = answer.result
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in result.headers]
    if result.status not in _NO_LENGTH:
        headers.append((b"content-length", b"%d" % len(result.body)))
    if answer.replayed:
        headers.append(_REPLAYED)
    closes = _CLOSE in result.headers
    await send({"type": "http.response.start", "status": result.status, "headers": headers})
    await send({"type": "http.response.body", "body": result.body, "more_body": closes})
    if closes:
        await hear_out(heard)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
