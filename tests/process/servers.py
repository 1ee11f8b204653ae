"""The fixture that gives tests their servers; none outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from process.rig import Server

Serve = Callable[..., Server]


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
