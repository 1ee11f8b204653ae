"""Reply: what an operation answers, and how it refuses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from oncebox.content import Unfit, written
from oncebox.errors import OnceboxError
from oncebox.model import Result
from oncebox.problem import CONTENT_TYPE, blank, problem

LARGEST = 16 << 20
# What is stored with a reply, and so all that a reply which is stored is sent with.
KEPT = ("content-type", "location", "etag", "link", "content-language")
# The server's own, or meant for one connection.
_NOT_THEIRS = frozenset(
    {"connection", "content-length", "date", "keep-alive", "server", "te", "trailer", "transfer-encoding", "upgrade"}
)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_WITHOUT_BODY = (204, 205, 304)


class Reply:
    """The answer of an operation: a status, and bytes, text or anything that JSON has as its body.

    A 2xx, a 3xx and a 4xx other than 429 are kept with Content-Type, Location, ETag, Link and Content-Language, and are
    sent with these only, so that a repeat is answered alike.
    """

    def __init__(self, status: int, body: object = None, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = dict(headers or {})

    def __repr__(self) -> str:
        return f"Reply({self.status})"


class Refuse(OnceboxError):
    """Raised by an operation: answered with this status and why, not stored; the key is free again."""

    def __init__(self, status: int, why: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.headers = dict(headers or {})


class BadReply(OnceboxError):
    """What an operation answered cannot be sent."""


def is_decided(status: int) -> bool:
    """Whether a reply of that status ends the matter: it is kept, and repeated ever after."""
    return status < 500 and status != 429


def encode(reply: object) -> Result:
    """The reply as it is kept and sent. Raises BadReply."""
    if not isinstance(reply, Reply):
        raise BadReply(f"an operation returns a Reply, not {type(reply).__name__}")
    status = reply.status
    if not _is_status(status, 200):
        raise BadReply(f"the status {status!r} is none that ends a request; use 200 to 599")
    body, content_type = _encoded(reply.body)
    if body and status in _WITHOUT_BODY:
        raise BadReply(f"a reply with status {status} has no body")
    if len(body) > LARGEST:
        raise BadReply(f"the body has {len(body)} bytes; at most {LARGEST} are kept")
    headers = header_pairs(reply.headers)
    if body and not any(name == "content-type" for name, _ in headers):
        headers = (("content-type", content_type), *headers)
    if is_decided(status):
        headers = tuple(pair for pair in headers if pair[0] in KEPT)
    return Result(status, headers, body)


def refusal(refuse: Refuse) -> Result:
    """The answer that `raise Refuse(…)` stands for. Raises BadReply."""
    if not _is_status(refuse.status, 400):
        raise BadReply(f"Refuse({refuse.status!r}): a refusal has a status from 400 to 599")
    return of_problem(refuse.status, "", refuse.why, header_pairs(refuse.headers))


def of_problem(status: int, slug: str, detail: str, headers: Iterable[tuple[str, str]] = (), **more: object) -> Result:
    """An answer of ours; without a slug it has no name beyond its status."""
    body = problem(status, slug, detail, **more) if slug else blank(status, detail)
    pairs = (("content-type", CONTENT_TYPE), *(pair for pair in headers if pair[0] != "content-type"))
    return Result(status, pairs, body)


def dropped(reply: object) -> list[str]:
    """The headers that a reply is not sent with, because a repeat would not have them."""
    if not isinstance(reply, Reply) or not is_decided(reply.status):
        return []
    return [name for name in reply.headers if name.lower() not in KEPT]


def header_pairs(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Headers with lower-case names, without those that are the server's. Raises BadReply."""
    for name, value in headers.items():
        if not _fits(_NAME, name):
            raise BadReply(f"{ascii(name)[:80]} is no name of a header")
        if not _fits(_VALUE, value):
            raise BadReply(f"the header {name} is not Latin-1 text on one line; percent-encode it")
    pairs = ((name.lower(), value.strip(" \t")) for name, value in headers.items())
    return tuple(pair for pair in pairs if pair[0] not in _NOT_THEIRS)


def _is_status(status: object, least: int) -> bool:
    return isinstance(status, int) and not isinstance(status, bool) and least <= status <= 599


def _fits(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def _encoded(body: object) -> tuple[bytes, str]:
    if body is None:
        return b"", ""
    try:
        return written(body)
    except Unfit as error:
        raise BadReply(f"the body {error}") from error
