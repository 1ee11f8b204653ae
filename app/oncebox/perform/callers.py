"""Callers: who may call operations, by their tokens. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256

from oncebox.errors import Rejected

NOBODY = ""
_CHALLENGE = (("www-authenticate", 'Bearer realm="oncebox"'),)
_NONE = "nobody may call operations here: there is no [callers] in the configuration"
_MISSING = "say who calls: `Authorization: Bearer …` with the token of a caller"
_WRONG = "this token is no caller's"
_TWICE = "there are several Authorization headers; send one"


class Callers:
    """The named callers. Only the digests of their secrets are kept."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._known = [(sha256(secret.encode()).digest(), name) for name, secret in secrets.items()]

    def who(self, authorization: list[bytes], *, public: bool) -> str:
        """The caller's name; of a public operation NOBODY if none is given. A token that nobody has is refused there,
        too: the retry of a named call must not become another one's. Raises Rejected 401."""
        if not authorization:
            if public:
                return NOBODY
            raise _refused(_MISSING if self._known else _NONE)
        if len(authorization) > 1:
            raise _refused(_TWICE)
        scheme, _, token = authorization[0].strip().partition(b" ")
        name = self._named(token.strip()) if scheme.lower() == b"bearer" else None
        if name is None:
            raise _refused(_WRONG if self._known else _NONE)
        return name

    def _named(self, token: bytes) -> str | None:
        """Whose token this is. All are compared in full, whichever fits."""
        given, found = sha256(token).digest(), None
        for digest, name in self._known:
            if hmac.compare_digest(digest, given):
                found = name
        return found


def _refused(detail: str) -> Rejected:
    return Rejected(401, "unauthorized", detail, _CHALLENGE)
