"""Encoding: a body's Content-Encoding undone, never to more than a bound."""

from __future__ import annotations

import zlib

GZIP = 31
ZLIB = 15
RAW = -15
STEP = 1 << 16


class BadEncoding(ValueError):
    """The body is not what its Content-Encoding says, or the encoding is not known."""


class TooBig(ValueError):
    """The decoded body would be larger than the bound."""


def decode(body: bytes, encoding: str, limit: int = 1 << 40) -> bytes:
    """The body after its encoding: gzip (x-gzip), deflate, identity or none; one level only.

    Raises BadEncoding, and TooBig before more than `limit` bytes have been made.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in ("gzip", "x-gzip"):
        return _members(body, limit)
    if name == "deflate":
        return _deflate(body, limit)
    raise BadEncoding(f"the encoding {name!r} is not known here; send the body as gzip, deflate or plain")


def _members(body: bytes, limit: int) -> bytes:
    """All members of a gzip file, one after the other (RFC 1952, 2.2)."""
    parts: list[bytes] = []
    size = 0
    rest = body
    while rest:
        part, rest = _inflate(rest, GZIP, limit - size)
        parts.append(part)
        size += len(part)
    if not parts:
        raise BadEncoding("the body is empty where gzip was announced")
    return b"".join(parts)


def _deflate(body: bytes, limit: int) -> bytes:
    """RFC 9110 means zlib's format; some senders leave its wrapper out."""
    try:
        whole, rest = _inflate(body, ZLIB, limit)
    except BadEncoding:
        whole, rest = _inflate(body, RAW, limit)
    if rest:
        raise BadEncoding("something follows the compressed body")
    return whole


def _inflate(body: bytes, window: int, limit: int) -> tuple[bytes, bytes]:
    machine = zlib.decompressobj(window)
    out = bytearray()
    data = body
    try:
        while not machine.eof:
            out += machine.decompress(data, STEP)
            if len(out) > limit:
                raise TooBig(f"the decoded body is larger than {limit} bytes")
            data = machine.unconsumed_tail
            if not data and not machine.eof:
                out += machine.flush()
                break
    except zlib.error as error:
        raise BadEncoding(f"the body is not what its Content-Encoding says ({error})") from error
    if not machine.eof:
        raise BadEncoding("the compressed body is cut off")
    if len(out) > limit:
        raise TooBig(f"the decoded body is larger than {limit} bytes")
    return bytes(out), machine.unused_data
