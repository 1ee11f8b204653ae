"""Turns: tests run beside those of the other workers; one that is marked `alone` runs while nobody else does."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from pathlib import Path

import pytest

HERE = Path(__file__)


class Turns:
    """The workers of one tree share two locks, on files that are there anyway; a lock ends with its process."""

    def __init__(self) -> None:
        self._gate, self._room = HERE.open("rb"), HERE.with_name("conftest.py").open("rb")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Who waits to be alone keeps the gate meanwhile, so that no other test begins."""
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            return (yield)
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def pytest_unconfigure(self) -> None:
        self._gate.close()
        self._room.close()
