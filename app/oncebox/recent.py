"""Recent: the numbers that something happened to lately, a bounded few of them, for those who watch."""

from __future__ import annotations

from itertools import islice

MOST = 50


class Recent:
    """Keeps the last fifty different numbers; `mark` grows by one with every note."""

    def __init__(self, most: int = MOST) -> None:
        self.mark = 0
        self._most = most
        self._noted: dict[int, int] = {}

    def note(self, number: int) -> None:
        """Something has happened to it."""
        self.mark += 1
        self._noted.pop(number, None)
        self._noted[number] = self.mark
        if len(self._noted) > self._most:
            del self._noted[next(iter(self._noted))]

    def since(self, mark: int = 0) -> list[int]:
        """The numbers noted after that mark, newest first, as far as they are kept."""
        fresh = min(self.mark - mark, len(self._noted))
        return [number for number in islice(reversed(self._noted), max(0, fresh)) if self._noted[number] > mark]
