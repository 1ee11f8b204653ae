"""Encoding: a body's Content-Encoding undone, never to more than a bound."""

from __future__ import annotations

import zlib

GZIP = 31
ZLIB = 15
RAW = -15
STEP = 1 << 16
# What follows a member is handed back as a copy, so a body is fed in pieces; and each member costs its own machine.
PIECE = 1 << 14
MOST_MEMBERS = 10_000


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
    size = at = 0
    while at < len(body):
        if len(parts) == MOST_MEMBERS:
            raise BadEncoding(f"the body has more than {MOST_MEMBERS} gzip members; send it as one")
        part, at = _inflate(body, at, GZIP, limit - size)
        parts.append(part)
        size += len(part)
    if not parts:
        raise BadEncoding("the body is empty where gzip was announced")
    return b"".join(parts)


def _deflate(body: bytes, limit: int) -> bytes:
    """RFC 9110 means zlib's format; some senders leave its wrapper out."""
    try:
        whole, end = _inflate(body, 0, ZLIB, limit)
    except BadEncoding:
        whole, end = _inflate(body, 0, RAW, limit)
    if end < len(body):
        raise BadEncoding("something follows the compressed body")
    return whole


def _inflate(body: bytes, at: int, window: int, limit: int) -> tuple[bytes, int]:
    """What is compressed from `at` on, and where it ends."""
    machine = zlib.decompressobj(window)
    out = bytearray()
    try:
        while not machine.eof and at < len(body):
            piece = body[at : at + PIECE]
            at += len(piece)
            while piece and not machine.eof:
                out += machine.decompress(piece, STEP)
                if len(out) > limit:
                    raise TooBig(f"the decoded body is larger than {limit} bytes")
                piece = machine.unconsumed_tail
        if not machine.eof:
            out += machine.flush()
    except zlib.error as error:
        raise BadEncoding(f"the body is not what its Content-Encoding says ({error})") from error
    if not machine.eof:
        raise BadEncoding("the compressed body is cut off")
    if len(out) > limit:
        raise TooBig(f"the decoded body is larger than {limit} bytes")
    return bytes(out), at - len(machine.unused_data)
