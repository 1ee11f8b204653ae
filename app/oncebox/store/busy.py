"""Busy: what code of others the writer's thread runs, and since when; while it runs, nothing else is written."""

from __future__ import annotations

import time


class Busy:
    """Set on the writer's thread, looked at from outside: who holds a thread for ever cannot say so."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._what = ""
        self._names: dict[str, object] = {}

    def begin(self, what: str, /, **names: object) -> None:
        """Code of others starts; `names` say which, such as target=… seq=…."""
        self._what, self._names = what, names
        self._since = time.monotonic()

    def end(self) -> None:
        """It has returned."""
        self._since = None

    def longer_than(self, seconds: float) -> tuple[str, str] | None:
        """What has been running for so long and its names as `name=value`; None if nothing has."""
        since, what, names = self._since, self._what, self._names
        if since is None or time.monotonic() - since < seconds:
            return None
        return what, " ".join(f"{name}={value}" for name, value in names.items())
