"""Origin: the targets of requests that name more than a path (RFC 9112, 3.2). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?([^/?#]*)(.*)", re.DOTALL)


def origin_form(target: bytes) -> tuple[bytes, bytes] | None:
    """Path and query of a whole URL, and the host that it names; None for every other target."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return None
    host, rest = found.groups()
    return (rest if rest.startswith(b"/") else b"/" + rest), host


def called(headers: Iterable[tuple[bytes, bytes]], host: bytes) -> Headers:
    """The headers of a request whose target names the host: no other name counts then."""
    return [(b"host", host), *(pair for pair in headers if pair[0].lower() != b"host")]
