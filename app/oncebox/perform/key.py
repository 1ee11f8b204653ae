"""Key: the Idempotency-Key of a request, quoted or bare. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from oncebox.errors import Rejected

NAME = b"idempotency-key"
LONGEST = 255
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')  # RFC 8941, 3.3.3
_BARE = re.compile(r"[ -~]*")
_ESCAPED = re.compile(r'\\(["\\])')
_EXAMPLE = "send one such as `Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324`, the same for each retry"


def idempotency_key(values: Sequence[bytes]) -> str:
    """The key of these header values; `"k"` and `k` are the same. Raises Rejected 400."""
    if not values:
        raise _bad(f"there is no Idempotency-Key header; {_EXAMPLE}")
    if len(values) > 1:
        raise _bad("there are several Idempotency-Key headers; send one")
    text = values[0].decode("latin-1").strip(" \t")
    key = _unquoted(text) if text.startswith('"') else text
    if not _BARE.fullmatch(key):
        raise _bad("the Idempotency-Key has characters other than printable ASCII")
    if not 1 <= len(key) <= LONGEST:
        raise _bad(f"the Idempotency-Key has {len(key)} characters; 1 to {LONGEST} are allowed")
    return key


def _unquoted(text: str) -> str:
    found = _QUOTED.fullmatch(text)
    if found is None:
        raise _bad('the Idempotency-Key starts with a quote but is no quoted string such as "abc" (RFC 8941)')
    return _ESCAPED.sub(r"\1", found[1])


def _bad(detail: str) -> Rejected:
    return Rejected(400, "bad-key", detail)
