"""Headers: names compared without case, order and repeats kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

# What a header may be called (RFC 9110, 5.1).
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch


class Headers(Mapping[str, str]):
    """A read-only mapping of header names to values; of a repeated name the first value."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = tuple(pairs)
        self._first: dict[str, str] = {}
        for name, value in self.pairs:
            self._first.setdefault(name.lower(), value)

    def __getitem__(self, name: str) -> str:
        return self._first[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def __repr__(self) -> str:
        return f"Headers({', '.join(self._first)})"
