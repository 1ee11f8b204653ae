"""Content: a Python value as the bytes of a body, and what they are. Pure."""

from __future__ import annotations

import msgspec

BYTES, TEXT, JSON = "application/octet-stream", "text/plain; charset=utf-8", "application/json"
# Statuses whose answers have no body, whatever they are given.
EMPTY = (204, 205)


class Unfit(ValueError):
    """The value cannot be the content of a body."""


def written(body: object) -> tuple[bytes, str]:
    """Bytes as they are, text as UTF-8, plain values as JSON; and the content type. Raises Unfit."""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body), BYTES
    try:
        if isinstance(body, str):
            return body.encode("utf-8"), TEXT
        return msgspec.json.encode(body), JSON
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise Unfit(f"cannot be written as JSON or UTF-8: {error}; give bytes, text or plain values") from error
