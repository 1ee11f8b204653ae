"""Fingerprint: the hash by which a repeated request is told from another one under the same key. Pure."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import NoReturn

import msgspec

_NUMBER = 1
_BYTES, _STRUCTURE = b"bytes", b"json"


class _NoStructure(ValueError):
    """JSON that not every reader takes for the same: a name twice in an object, NaN."""


def fingerprint(method: str, path: str, query: str, content_type: str, body: bytes) -> bytes:
    """The SHA-256 of a request.

    JSON is compared as a structure: the order of members, blanks and escapes do not matter, numbers are compared as
    they are written. A body that is not JSON by its type (or none and no JSON by its content), that has a name twice
    in an object or that cannot be read is compared byte for byte.
    """
    structure = _structure(body) if is_json(content_type) else None
    kind, content = (_BYTES, body) if structure is None else (_STRUCTURE, structure)
    return sha256(msgspec.msgpack.encode((method, path, query, kind, content))).digest()


def is_json(content_type: str) -> bool:
    """Whether a body of this type is JSON, or may be since nothing is said."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind in ("", "application/json") or kind.endswith("+json")


def _structure(body: bytes) -> bytes | None:
    """The body in a form that is the same for the same structure; None if it has none."""
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            parse_int=_number,
            parse_float=_number,
            parse_constant=_constant,
            object_pairs_hook=_members,
        )
        return msgspec.msgpack.encode(value, order="deterministic")
    except (ValueError, TypeError, RecursionError, OverflowError):  # a lone surrogate, too
        return None


def _number(text: str) -> msgspec.msgpack.Ext:
    """A number as it is written, told from the string of the same characters."""
    return msgspec.msgpack.Ext(_NUMBER, text.encode())


def _constant(name: str) -> NoReturn:
    raise _NoStructure(name)


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NoStructure("a name twice")
    return members
