"""Callbook: where the calls of operations are looked up: in the running server if there is one, else in the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from oncebox.cli.client import Client
from oncebox.cli.desk import WHO, FileDesk
from oncebox.cli.inbox import client_for, load_config
from oncebox.cli.options import Asked
from oncebox.clock import wall_clock
from oncebox.config import Config
from oncebox.operate import operations
from oncebox.operate.look import Query
from oncebox.perform.decision import decide
from oncebox.perform.operation import load_operations
from oncebox.store.offline import open_offline
from oncebox.store.sqlite import SQLiteStore

Json = dict[str, Any]
Given = Mapping[str, str | None]


class Callbook(Protocol):
    """What can be asked and decided. Answers are those of the API. `live`: a server works on it now."""

    live: bool

    def calls(self, given: Given) -> Json: ...
    def call(self, caller: str, key: str) -> Json: ...
    def resolve(self, order: Json) -> Json: ...


class ServerCallbook:
    """A running server, asked by HTTP."""

    live = True

    def __init__(self, client: Client) -> None:
        self._client = client

    def calls(self, given: Given) -> Json:
        return self._client.get("/api/operations", given)

    def call(self, caller: str, key: str) -> Json:
        return self._client.get("/api/operations/lookup", {"caller": caller, "key": key})

    def resolve(self, order: Json) -> Json:
        return self._client.post("/api/operations/resolve", order)


class FileCallbook:
    """A file that no server has open."""

    live = False

    def __init__(self, config: Config) -> None:
        self._config = config

    def calls(self, given: Given) -> Json:
        return self._read(operations.calls({name: value for name, value in given.items() if value is not None}))

    def call(self, caller: str, key: str) -> Json:
        return self._read(operations.lookup({"caller": caller, "key": key}, bodies=True))

    def resolve(self, order: Json) -> Json:
        return FileResolution(self._config).resolve(order)

    def _read(self, query: Query) -> Json:
        with open_offline(self._config.store.path) as read:
            return read(query)


class FileResolution(FileDesk):
    """The same file, held for as long as it takes. What a dead process left running has ended: that is found first."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._retry_safe = [name for name, one in load_operations(config.handlers).items() if one.retry_safe]

    def resolve(self, order: Json) -> Json:
        resolution = operations.read_resolution(json.dumps(order).encode())

        async def work(store: SQLiteStore) -> Json:
            await store.operations.recover(self._retry_safe, wall_clock())
            return await operations.resolve(store, resolution, decide, who=WHO, now=wall_clock())

        return self._write(work)


def open_callbook(asked: Asked) -> Callbook:
    """The one that is meant: --url, else the server that has the configured file open, else the file."""
    client = client_for(asked)
    return ServerCallbook(client) if client is not None else FileCallbook(load_config(asked.config))
