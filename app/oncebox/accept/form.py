"""Form: the fields of an urlencoded or multipart body, as text. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from urllib.parse import parse_qsl

Pairs = list[tuple[str, str]]

# More than any form of a sender has. Forms are read before a signature in them can be, so a hostile one must be cheap.
MAX_FIELDS = 1_000
_NAME = re.compile(rb'content-disposition:[ \t]*form-data;[ \t]*name="([^"\\\r\n]*)"', re.IGNORECASE)


def form_pairs(content_type: str, body: bytes) -> Pairs:
    """The fields in order, repeats kept. Bytes that are not UTF-8 come as lone surrogates.

    Raises ValueError for a body that is no form.
    """
    if content_type[:19].lower() == "multipart/form-data":
        return list(_parts(content_type, body))
    return query_pairs(body.decode("utf-8", "surrogateescape"))


def query_pairs(text: str) -> Pairs:
    """The parameters of a query, `+` and percent signs decoded, blank values kept. Raises ValueError for too many."""
    return parse_qsl(text, keep_blank_values=True, errors="surrogateescape", max_num_fields=MAX_FIELDS)


def _parts(content_type: str, body: bytes) -> Iterator[tuple[str, str]]:
    boundary = _parameter("content-type", content_type, "boundary")
    if not boundary:
        raise ValueError("the content type of the multipart body names no boundary")
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"), MAX_FIELDS + 2)
    if len(pieces) > MAX_FIELDS + 2:
        raise ValueError(f"it has more than {MAX_FIELDS} parts")
    for piece in pieces[1:]:
        if piece.startswith(b"--"):
            return
        head, blank, value = piece.partition(b"\r\n\r\n")
        name = _field_name(head) if blank else None
        if name is not None:
            yield name, value.decode("utf-8", "surrogateescape")
    raise ValueError("the multipart body does not end with its boundary")


def _field_name(head: bytes) -> str | None:
    plain = _NAME.search(head) if head.count(b":") == 1 else None
    if plain is not None:
        return plain[1].decode("utf-8", "surrogateescape")
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            return _parameter("content-disposition", value.strip(), "name")
    return None


def _parameter(header: str, value: str, name: str) -> str | None:
    message = Message()
    message[header] = value.replace("\n", " ").replace("\r", " ")
    found = message.get_param(name, header=header)
    return found if isinstance(found, str) else None
