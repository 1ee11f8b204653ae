"""Headers: names compared without case, order and repeats kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

# What a header may be called (RFC 9110, 5.1).
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch


class Headers(Mapping[str, str]):
    """A read-only mapping of header names to values; of a repeated name the first value."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = tuple(pairs)

    @cached_property
    def _first(self) -> dict[str, str]:
        """Made when it is asked for: many are only passed on."""
        return {name.lower(): value for name, value in reversed(self.pairs)}

    def __getitem__(self, name: str) -> str:
        return self._first[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def __repr__(self) -> str:
        return f"Headers({', '.join(self._first)})"
