"""Desk: where orders go: to the running server if there is one, else into the file itself, held for as long as it
takes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import anyio

from oncebox.cli.client import PATIENCE, Client
from oncebox.cli.inbox import client_for, load_config
from oncebox.cli.options import Asked
from oncebox.clock import wall_clock
from oncebox.config import Config
from oncebox.operate import rerunning, settling, targets
from oncebox.operate.targets import Known
from oncebox.store.offline import open_offline
from oncebox.store.sqlite import SQLiteStore, open_store
from oncebox.wiring import all_routes, internal, known_targets, load, route_by, store_options

Json = dict[str, Any]
T = TypeVar("T")

WHO = "command line"


class Desk(Protocol):
    """What can be ordered, and asked about it. Answers are those of the API. `live`: a server works on it now."""

    live: bool

    def rerun_event(self, seq: int, order: Json) -> Json: ...
    def rerun_many(self, order: Json) -> Json: ...
    def reruns(self, given: Mapping[str, str]) -> Json: ...
    def rerun(self, id: int) -> Json: ...
    def cancel(self, id: int) -> Json: ...
    def targets(self) -> Json: ...
    def pause(self, name: str, why: str) -> Json: ...
    def resume(self, name: str) -> Json: ...
    def settle(self, name: str, order: Json) -> Json: ...
    def sources(self) -> Json: ...


class ServerDesk:
    """A running server, told by HTTP."""

    live = True

    def __init__(self, client: Client) -> None:
        self._client = client

    def rerun_event(self, seq: int, order: Json) -> Json:
        return self._client.post(f"/api/events/{seq}/rerun", order)

    def rerun_many(self, order: Json) -> Json:
        return self._client.post("/api/reruns", order, timeout=PATIENCE)  # it counts first, which may be millions

    def reruns(self, given: Mapping[str, str]) -> Json:
        return self._client.get(f"/api/reruns?{urlencode(given)}" if given else "/api/reruns")

    def rerun(self, id: int) -> Json:
        return self._client.get(f"/api/reruns/{id}")

    def cancel(self, id: int) -> Json:
        return self._client.delete(f"/api/reruns/{id}")

    def targets(self) -> Json:
        return self._client.get("/api/targets")

    def pause(self, name: str, why: str) -> Json:
        return self._client.post(f"/api/targets/{quote(name, safe='')}/pause", {"why": why})

    def resume(self, name: str) -> Json:
        return self._client.post(f"/api/targets/{quote(name, safe='')}/resume", {})

    def settle(self, name: str, order: Json) -> Json:
        return self._client.post(f"/api/targets/{quote(name, safe='')}/settle", order)

    def sources(self) -> Json:
        return self._client.get("/api/sources")


class FileDesk:
    """A file that no server has open. What is ordered is written down, and happens when one starts."""

    live = False

    def __init__(self, config: Config) -> None:
        self._config = config
        handlers = load(config)
        self._routes = all_routes(config, handlers)
        self._known: list[Known] = known_targets(config, handlers)
        self._names = [one.name for one in self._known]

    def rerun_event(self, seq: int, order: Json) -> Json:
        one = rerunning.OneOrder(**order)
        return self._write(lambda s: rerunning.rerun_event(s, seq, one, self._names, who=WHO, now=wall_clock()))

    def rerun_many(self, order: Json) -> Json:
        many = rerunning.Order(**order)
        return self._write(lambda s: rerunning.order_rerun(s, many, self._names, who=WHO, now=wall_clock()))

    def reruns(self, given: Mapping[str, str]) -> Json:
        return self._read(rerunning.reruns(given))

    def rerun(self, id: int) -> Json:
        return self._read(rerunning.rerun(id))

    def cancel(self, id: int) -> Json:
        return self._write(lambda s: rerunning.cancel_rerun(s, id, who=WHO, now=wall_clock()))

    def targets(self) -> Json:
        return self._read(targets.targets(self._known, {}))

    def pause(self, name: str, why: str) -> Json:
        return self._write(lambda s: targets.pause(s, self._known, name, why, who=WHO, now=wall_clock()))

    def resume(self, name: str) -> Json:
        return self._write(lambda s: targets.resume(s, self._known, name, who=WHO, now=wall_clock()))

    def settle(self, name: str, order: Json) -> Json:
        read = settling.read_settle_order(json.dumps(order).encode())
        return self._write(lambda s: settling.settle_waiting(s, self._known, name, read, who=WHO, now=wall_clock()))

    def sources(self) -> Json:
        return self._read(targets.sources(self._config, sorted(internal(self._config, self._routes)), wall_clock()))

    def _read(self, query: Callable[[Any], Json]) -> Json:
        with open_offline(self._config.store.path) as read:
            return read(query)

    def _write(self, work: Callable[[SQLiteStore], Awaitable[T]]) -> T:
        self._read(lambda _db: {})  # a file that is not there is not made by an order about its history

        async def held() -> T:
            config = self._config
            router, sources = route_by(self._routes), internal(config, self._routes)
            path, options, names = config.store.path, store_options(config), frozenset(self._names)
            async with open_store(path, router=router, internal=sources, targets=names, options=options) as store:
                return await work(store)

        return anyio.run(held)


def open_desk(asked: Asked) -> Desk:
    """The desk that is meant: --url, else the server that has the configured file open, else the file."""
    client = client_for(asked)
    return ServerDesk(client) if client is not None else FileDesk(load_config(asked.config))
