"""Throttle: lets the same fact into the log only every so often. Pure."""

from __future__ import annotations


class Throttle:
    """Remembers when each key was let through last, in monotonic seconds."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._last: dict[str, float] = {}

    def allows(self, key: str, now: float) -> bool:
        """Whether the key was not let through in the last seconds; if so, it is now."""
        if now - self._last.get(key, -self._seconds) < self._seconds:
            return False
        self._last[key] = now
        return True
