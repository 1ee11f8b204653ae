"""Inbox: where answers come from: the running server if there is one, else the file itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import click

from oncebox.address import host_of, is_loopback
from oncebox.cli.client import Client
from oncebox.cli.options import Asked
from oncebox.clock import wall_clock
from oncebox.config import Config, load, salvage
from oncebox.drain.load import Handlers, load_handlers
from oncebox.errors import ConfigError, NotReachable, OnceboxError
from oncebox.operate import look
from oncebox.operate.targets import Known, targets
from oncebox.operate.token import read_token
from oncebox.store.lock import LockInfo, read_lock
from oncebox.store.offline import open_offline
from oncebox.wiring import known_targets

Json = dict[str, Any]
Given = Mapping[str, str | None]


class Inbox(Protocol):
    """What can be asked. Answers are those of the API."""

    def events(self, given: Given) -> Json: ...
    def event(self, seq: int) -> Json: ...
    def body(self, seq: int) -> bytes: ...
    def lookup(self, source: str, id: str) -> Json: ...
    def stats(self) -> Json: ...
    def refused(self, given: Given) -> Json: ...
    def refused_request(self, n: int) -> Json: ...
    def targets(self) -> dict[str, Json]: ...


class Server:
    """A running server, asked by HTTP."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def events(self, given: Given) -> Json:
        return self._client.get("/api/events", given)

    def event(self, seq: int) -> Json:
        return self._client.get(f"/api/events/{seq}")

    def body(self, seq: int) -> bytes:
        return self._client.fetch(f"/api/events/{seq}/body").body

    def lookup(self, source: str, id: str) -> Json:
        return self._client.get("/api/lookup", {"source": source, "id": id})

    def stats(self) -> Json:
        return self._client.get("/api/stats")

    def refused(self, given: Given) -> Json:
        return self._client.get("/api/refused", given)

    def refused_request(self, n: int) -> Json:
        return self._client.get(f"/api/refused/{n}")

    def targets(self) -> dict[str, Json]:
        return by_name(self._client.get("/api/targets"))


class File:
    """A file that no server has open, read by this process."""

    def __init__(self, read: Callable[[Callable[[Any], Any]], Any], config: Config) -> None:
        self._read = read
        self._config = config

    def events(self, given: Given) -> Json:
        return self._ask(look.events(_named(given), wall_clock()))

    def event(self, seq: int) -> Json:
        return self._ask(look.event(seq))

    def body(self, seq: int) -> bytes:
        return bytes(self._read(look.body(seq)).body)

    def lookup(self, source: str, id: str) -> Json:
        return self._ask(look.lookup({"source": source, "id": id}))

    def stats(self) -> Json:
        return self._ask(look.stats({}, wall_clock(), self._config.store.path, self._config.sources))

    def refused(self, given: Given) -> Json:
        return self._ask(look.refused(_named(given)))

    def refused_request(self, n: int) -> Json:
        return self._ask(look.refused_request(n))

    def targets(self) -> dict[str, Json]:
        try:
            handlers = load_handlers(self._config.handlers, self._config.folder)
        except OnceboxError:
            # Whoever is not known may be one of the handlers.
            known = known_targets(self._config, Handlers())
            return {name: one for name, one in self._targets(known).items() if one["kind"]}
        return self._targets(known_targets(self._config, handlers))

    def _targets(self, known: list[Known]) -> dict[str, Json]:
        return by_name(self._ask(targets(known, {})))

    def _ask(self, query: Callable[[Any], Any]) -> Json:
        found = self._read(query)
        assert isinstance(found, dict)
        return found


def by_name(found: Json) -> dict[str, Json]:
    """Targets as they are listed, each under its name."""
    return {one["name"]: one for one in found["targets"]}


def _named(given: Given) -> dict[str, str]:
    return {name: value for name, value in given.items() if value is not None}


def load_config(path: Path | None, **overrides: object) -> Config:
    """The configuration as every command finds it. Raises ConfigError."""
    return load(path, environ=os.environ, overrides=overrides)


@contextmanager
def open_inbox(asked: Asked) -> Iterator[Inbox]:
    """The inbox that is meant: --url, else the server that has the configured file open, else the file.

    Raises NotReachable for a server that does not answer.
    """
    client = client_for(asked)
    if client is not None:
        yield Server(client)
        return
    config = load_config(asked.config)
    with open_offline(config.store.path) as read:
        yield File(read, config)


def client_for(asked: Asked) -> Client | None:
    """The server that is meant: --url, else the one that has the configured file open; None when nobody has.

    Raises NotReachable for a server that does not answer.
    """
    if asked.url is not None:
        return Client(asked.url, asked.token or _own_token(asked.url, asked.config))
    try:
        config, trouble = load_config(asked.config), None
    except ConfigError as error:
        # Who looks for a running server needs to know no more than which file it has open.
        config, trouble = salvage(asked.config, os.environ), error
    address = running_server(config)
    if trouble is not None and address is None:
        raise trouble
    if trouble is not None:
        click.echo(f"oncebox: warning: {trouble}\noncebox: warning: asking the running server all the same", err=True)
    return None if address is None else Client(address, asked.token or configured_token(config))


def running_server(config: Config) -> str | None:
    """The address of the server that has the file open; None when nobody has.

    What the lock file says is believed only while the lock is held and the server says that it is the one.
    """
    lock = read_lock(config.store.path)
    if lock is None or not lock.held:
        return None
    if not lock.address:
        raise NotReachable(
            f"{config.store.path}: process {lock.pid} has this file open and takes no requests (yet); try again, or "
            "name a server by --url"
        )
    _check_boot(config, lock)
    return lock.address


def _check_boot(config: Config, lock: LockInfo) -> None:
    try:
        said = Client(lock.address).get("/healthz").get("boot")
    except OnceboxError as error:
        raise NotReachable(
            f"{config.store.path}: process {lock.pid} has this file open, but does not answer: {error}"
        ) from error
    if said != lock.boot:
        raise NotReachable(
            f"{lock.address}: answers, but is not the server that has {config.store.path} open (process {lock.pid}); "
            "name the right one by --url"
        )


def configured_token(config: Config) -> str | None:
    """The strongest configured token, else the one that was made at the first start."""
    for may in ("admin", "read-bodies", "read"):
        for token in config.tokens.values():
            if token.may == may:
                return token.secret.value
    return read_token(config.store.path)


def _own_token(url: str, path: Path | None) -> str | None:
    """Our token is shown to our own server only: on this machine, or under the configured public URL."""
    try:
        config = salvage(path, os.environ)
    except OnceboxError:
        return None
    host = host_of(url if "//" in url else f"http://{url}")
    ours = is_loopback(host) or (host != "" and host == host_of(config.server.public_url or ""))
    return configured_token(config) if ours else None
