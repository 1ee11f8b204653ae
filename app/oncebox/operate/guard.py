"""Guard: what stands before the API and the pages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import anyio
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from oncebox.config import Config
from oncebox.operate.auth import Brake, Hosts, Tokens, bearer, missing, too_little, wrong
from oncebox.operate.token import ensure_token

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# A route says in its `opt` what it takes to use it; one that says nothing takes everything.
MAY = "may"

Connection = ASGIConnection[Any, Any, Any, Any]


class Guard:
    """Checks Host, Origin and token of a request; `scope["state"]["who"]` then says whose it was."""

    def __init__(self, tokens: Tokens, hosts: Hosts) -> None:
        self._tokens = tokens
        self._hosts = hosts
        self._brake = Brake()

    async def __call__(self, connection: Connection, handler: BaseRouteHandler) -> None:
        """Raise Rejected for what may not pass."""
        headers: Mapping[str, str] = connection.headers
        host = headers.get("host", "")
        self._hosts.check(host)
        if connection.scope.get("method") not in SAFE:
            self._hosts.check_origin(headers.get("origin"), host)
        token = bearer(headers.get("authorization"))
        if token is None:
            raise missing()
        who = self._tokens.who(token)
        if who is None:
            await anyio.sleep(self._brake.wait(time.monotonic()))
            raise wrong()
        needed = str(handler.opt.get(MAY, "admin"))
        if not who.can(needed):
            raise too_little(who, needed)
        connection.state["who"] = who


def create_guard(config: Config) -> Guard:
    """The guard of this configuration. Without [tokens] an admin token is made beside the database, once."""
    named = {name: (token.secret.value, token.may) for name, token in config.tokens.items()}
    if not named:
        named = {"admin": (ensure_token(config.store.path), "admin")}
    return Guard(Tokens(named), Hosts(config.server.host, config.server.public_url))
