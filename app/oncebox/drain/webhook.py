"""Webhook: what a receiver is sent besides the body, and what its answer means. Pure."""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from oncebox.drain.verdict import OK, Verdict, bounded
from oncebox.headers import Headers
from oncebox.model import Claimed

SNIPPET = 500
LONGEST_ID = 255
# A receiver that asks for more is asked again after a day all the same.
LONGEST_WAIT = 86_400.0
DOWN = frozenset({429, 502, 503, 504})
# Hashing more at a time gives Python's lock away, and to have it back costs more than the hashing of a usual body.
PIECE, AT_ONCE = 2047, 1 << 16

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# The sender's headers that say something about the event; ours, and those of its hop to us, are not among them.
_MEANS = re.compile(
    r"(x|ce|svix|linear)-.+|.*(signature|event|delivery|topic|timestamp|hook).*|content-language|traceparent|tracestate"
    r"|i-twilio-idempotency-token"
)
_NEVER = re.compile(
    r"(webhook|oncebox|sec|proxy|x-forwarded|x-real|x-amzn|x-envoy)-.*|via|forwarded|idempotency-key"
    r"|(?!i-twilio-).*(token|secret|passw|auth|api-?key|cookie|credential|session|csrf).*"
)

_STATUS = re.compile(rb"[\r\n]*HTTP/[12](?:\.[0-9])? ([1-9][0-9]{2})(?: [^\r\n]*)?\r?\n")
_BLANK = re.compile(rb"^\r?\n", re.MULTILINE)


class Head(NamedTuple):
    """The head of an answer: its status, and what it says of itself. `rest` is what came behind it."""

    status: int
    headers: Mapping[str, str]
    rest: bytes = b""


def signing_key(secret: str) -> bytes:
    """The key behind a Standard Webhooks secret; raises ValueError that does not show it."""
    text = secret.strip().removeprefix("whsec_")
    try:
        key = binascii.a2b_base64((text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)).encode(), strict_mode=True)
    except ValueError:
        key = b""
    if not key:
        raise ValueError('is no Standard Webhooks secret; write "whsec_" and base64 (such as: openssl rand -base64 32)')
    return key


def webhook_id(name: str) -> str:
    """An event's name as a header carries it: itself, or its hash if it is too long or not printable ASCII."""
    if len(name) <= LONGEST_ID and name.isascii() and name.isprintable():
        return name
    return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def sign(key: bytes, id: str, at: int, body: bytes) -> str:
    """The Standard Webhooks signature of a message sent at a time in unix seconds."""
    mac = _keyed(key).copy()
    start = f"{id}.{at}.".encode()
    if len(body) > AT_ONCE:
        mac.update(start)
        mac.update(body)
    else:
        signed = start + body
        for begin in range(0, len(signed), PIECE):
            mac.update(signed[begin : begin + PIECE])
    return "v1," + binascii.b2a_base64(mac.digest(), newline=False).decode()


@lru_cache(maxsize=256)
def _keyed(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod="sha256")


def request_headers(claimed: Claimed, at: int, key: bytes | None) -> dict[str, str]:
    """All headers of a delivery but those of the transport; `at` in unix seconds."""
    event = claimed.event
    id = webhook_id(event.idempotency_key)
    headers = meaningful(event.headers)
    if event.content_type:
        headers["Content-Type"] = _clean(event.content_type)
    if claimed.encoding:
        headers["Content-Encoding"] = _clean(claimed.encoding)
    headers["webhook-id"] = headers["Idempotency-Key"] = id
    headers["webhook-timestamp"] = str(at)
    if key is not None:
        headers["webhook-signature"] = sign(key, id, at, event.raw)
    headers["Oncebox-Id"] = _clean(event.id)
    headers["Oncebox-Attempt"] = str(claimed.attempt)
    if event.type is not None:
        headers["Oncebox-Type"] = _clean(event.type)
    return headers


def meaningful(headers: Headers) -> dict[str, str]:
    """The sender's headers that are passed on: no credentials, nothing of its connection, nothing that is ours."""
    kept: dict[str, str] = {}
    for name, value in headers.pairs:
        if _means_something(name) and not _CONTROL.search(value):
            kept.setdefault(name.lower(), _as_sent(value))
    return kept


@lru_cache(maxsize=1024)
def _means_something(name: str) -> bool:
    lower = name.lower()
    return _MEANS.fullmatch(lower) is not None and _NEVER.fullmatch(lower) is None


def of_answer(
    status: int, *, snippet: str = "", location: str = "", retry_after: str = "", now: float = 0.0, least: float = 0.0
) -> Verdict:
    """The verdict on an answer; `now` in unix seconds. A wait that it asks for is never taken as under `least`."""
    if 200 <= status < 300:
        return OK
    what = f"answered {status} {phrase(status)}".rstrip()
    if 300 <= status < 400:
        what += (
            f"; redirects are not followed{f' (it points to {location[:200]})' if location else ''}: correct the url"
        )
    wait = waited(retry_after, now)
    return Verdict(
        outcome="refused" if status == 410 else "error",
        error=bounded(f"{what}\n\n{snippet}" if snippet else what),
        reason=str(status),
        after=None if wait is None else max(wait, least),
        dead=status == 410,
        down=status in DOWN,
    )


def head_of(came: bytes) -> Head | None:
    """The head of what came in answer, for an answer with a fault in its head or behind it: the status line alone says
    what became of the request. None if there is none; interim answers (1xx) are passed over."""
    at = 0
    while (line := _STATUS.match(came, at)) is not None:
        blank = _BLANK.search(came, line.end())
        fields, at = came[line.end() : blank.start() if blank else len(came)], blank.end() if blank else len(came)
        status = int(line[1])
        if status == 101 or not 100 <= status < 200:
            return Head(status, _fields(fields), came[at:])
    return None


def _fields(block: bytes) -> Headers:
    named = (line.partition(":") for line in block.decode("latin-1").split("\n"))
    return Headers((name.strip(), value.strip()) for name, sign, value in named if sign)


def phrase(status: int) -> str:
    """The name of a status, or nothing."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def waited(retry_after: str, now: float) -> float | None:
    """The seconds of a Retry-After, which is a number of them or a date (RFC 9110, 10.2.3); None if neither."""
    text = retry_after.strip()
    if re.fullmatch(r"[0-9]{1,12}", text):
        return min(float(text), LONGEST_WAIT)
    try:
        date = parsedate_to_datetime(text)
        then = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, TypeError):
        return None
    return min(max(0.0, then - now), LONGEST_WAIT)


def shown(body: bytes, charset: str, *, last: bool = False) -> str:
    """The first (or last) characters of what the other side said, for a person."""
    text = body.decode(charset, "replace").strip()
    text = re.sub(r"[^\S\n]+", " ", re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text))
    if len(text) <= SNIPPET:
        return text
    return f"…{text[1 - SNIPPET :]}" if last else f"{text[: SNIPPET - 1]}…"


def _clean(text: str) -> str:
    return text if text.isprintable() else _CONTROL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _as_sent(value: str) -> str:
    """Headers are kept as Latin-1 text and leave as UTF-8: what came as UTF-8 leaves as the same bytes."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except ValueError:
        return value
