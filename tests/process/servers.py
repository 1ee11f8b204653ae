"""The fixtures that give tests their servers; none outlives its test, or the module whose tests share it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from process.rig import Server, clean_stop

Serve = Callable[..., Server]
S = TypeVar("S", bound=Server)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Makes servers, not started yet; `name` is the folder."""
    made: list[Server] = []

    def make(name: str = "inbox", **more: str) -> Server:
        made.append(Server(tmp_path / name, **more))
        return made[-1]

    yield make
    for server in made:
        server.end()


@contextlib.contextmanager
def shared(server: S) -> Iterator[S]:
    """A server that many tests use one after another: no traceback of any of them, and a clean stop in the end."""
    try:
        server.start()
        yield server
        assert "Traceback" not in server.log(), server.log()
        clean_stop(server)
    finally:
        server.end()
