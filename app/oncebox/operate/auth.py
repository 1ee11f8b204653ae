"""Auth: who asks, what they may do, and whether the request was meant for this server."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from oncebox.address import host_name
from oncebox.errors import Rejected

MAY = ("read", "read-bodies", "admin")
STEP = 0.25
LONGEST = 5.0
_CHALLENGE = (("www-authenticate", 'Bearer realm="oncebox"'),)
_TOO_LITTLE = (("www-authenticate", 'Bearer realm="oncebox", error="insufficient_scope"'),)
_EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104  # these are recognised, nothing is bound to them here


class Who(msgspec.Struct, frozen=True):
    """Somebody with a token: its name, and what it may do."""

    name: str
    may: str

    def can(self, needed: str) -> bool:
        """Each right includes the ones before it: read, read-bodies, admin."""
        return MAY.index(self.may) >= MAY.index(needed)


class Tokens:
    """The named tokens. Only their digests are kept."""

    def __init__(self, named: Mapping[str, tuple[str, str]]) -> None:
        """`named` maps a name to its secret and what it may do."""
        self._known = [(_digest(secret.encode()), Who(name, may)) for name, (secret, may) in named.items()]

    def who(self, token: bytes) -> Who | None:
        """Whose token this is. All are compared in full, whichever fits."""
        given = _digest(token)
        found = None
        for digest, who in self._known:
            if hmac.compare_digest(digest, given):
                found = who
        return found


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


class Brake:
    """How long the answer to a wrong token waits: each a moment longer than the one before, up to a bound.

    Only wrong ones are asked about, so a right one never waits behind them.
    """

    def __init__(self) -> None:
        self._free_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds to wait; `now` is monotonic."""
        self._free_at = min(max(self._free_at, now) + STEP, now + LONGEST)
        return self._free_at - now


def bearer(header: str | None) -> bytes | None:
    """The token of an Authorization header as ASGI gives it (Latin-1 stands for bytes)."""
    scheme, _, token = (header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        return None
    return token.strip().encode("latin-1", "replace")


def missing() -> Rejected:
    """The refusal of a request without a token."""
    return Rejected(
        401,
        "unauthorized",
        "send a token: `Authorization: Bearer …`; without [tokens] it is the one in the file <db>.token",
        _CHALLENGE,
    )


def wrong() -> Rejected:
    """The refusal of a token that nobody has."""
    return Rejected(401, "unauthorized", "this token is not known here", _CHALLENGE)


def too_little(who: Who, needed: str) -> Rejected:
    """The refusal of somebody who may do less than this."""
    return Rejected(
        403, "unauthorized", f'the token "{who.name}" may {who.may}; this needs may = "{needed}"', _TOO_LITTLE
    )


class Hosts:
    """The names this server is called by. A page elsewhere that points its own name here (DNS rebinding) has another.

    On a wildcard bind every address is ours, and an address is no name that anybody could point here.
    """

    def __init__(self, bind: str, public_url: str | None) -> None:
        named = {"localhost", "127.0.0.1", "::1", bind.strip("[]").lower()}
        if public_url:
            named.add((urlsplit(public_url).hostname or "").lower())
        self._named = frozenset(named - _EVERYWHERE)
        self._any_address = bind.strip("[]") in _EVERYWHERE

    def check(self, host: str) -> None:
        """Refuse another Host header, whatever its port. Raises Rejected 400."""
        name = host_name(host)
        if name in self._named or (self._any_address and _is_address(name)):
            return
        raise Rejected(
            400, "bad-request", f'this server is not called "{host[:80]}"; if it is, set server.public_url to that'
        )

    def check_origin(self, origin: str | None, host: str) -> None:
        """Refuse a change that a page of another site asks for. Raises Rejected 403."""
        if origin is None:
            return
        parts = urlsplit(origin)
        if parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower():
            return
        if host_name(parts.netloc) in self._named - {"localhost", "127.0.0.1", "::1"}:
            return
        raise Rejected(403, "unauthorized", f'a page of "{origin[:80]}" may not change anything here')


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
