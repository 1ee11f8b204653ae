"""Incoming: one HTTP request as it came, before anything in it is believed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Incoming(msgspec.Struct, frozen=True):
    """A request with its body read whole.

    `headers` has lower-case names; a header that came more than once is joined with ", " and its name is in
    `repeated`. `url` is what the sender called: the configured public URL plus raw path and query. `body` is the
    wire, `decoded` the same after its Content-Encoding. `arrived` is unix microseconds.
    """

    method: str
    url: str
    query: str
    headers: dict[str, str]
    repeated: frozenset[str]
    body: bytes
    decoded: bytes
    arrived: int

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], frozenset[str]]:
    """ASGI headers as text (Latin-1, so that every byte survives), and the names that came more than once.

    Blanks around a value are no part of it (RFC 9110, 5.5), whether or not the parser has taken them off.
    """
    headers: dict[str, str] = {}
    repeated: set[str] = set()
    for name, value in raw:
        key = name.decode("latin-1")
        text = value.strip(b" \t").decode("latin-1")
        if key in headers:
            repeated.add(key)
            text = f"{headers[key]}, {text}"
        headers[key] = text
    return headers, frozenset(repeated)
