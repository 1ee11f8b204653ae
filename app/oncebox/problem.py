"""Problem: errors as RFC 9457 `application/problem+json`. Pure."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

CONTENT_TYPE = "application/problem+json"

TITLES = {
    "unknown-source": "There is no such source",
    "too-large": "The body is too large",
    "bad-encoding": "The content encoding cannot be read",
    "bad-signature": "The signature does not fit",
    "bad-id": "The request has no usable id",
    "bad-body": "The body cannot be read",
    "id-conflict": "The id was used before with another body",
    "overloaded": "Too much is waiting",
    "storage-full": "The storage is full",
    "unauthorized": "Not allowed",
    "not-found": "Not found",
    "bad-request": "The request cannot be understood",
    "bad-key": "The idempotency key cannot be used",
    "key-conflict": "The key was used before with another request",
    "in-progress": "The first request is still running",
    "outcome-unknown": "Nobody knows how the first request ended",
}

PHRASES = {status.value: status.phrase for status in HTTPStatus}


def problem(status: int, slug: str, detail: str, **more: object) -> bytes:
    """The body of an error. `slug` is the last part of its type, `more` are further members such as `index`."""
    return msgspec.json.encode(
        {
            "type": f"urn:oncebox:problem:{slug}",
            "title": TITLES.get(slug, "Error"),
            "status": status,
            "detail": detail,
            **more,
        }
    )


def blank(status: int, detail: str) -> bytes:
    """The body of an error that has no name of its own (RFC 9457, 4.2.1: its title is the status')."""
    title = PHRASES.get(status, "Error")
    return msgspec.json.encode({"type": "about:blank", "title": title, "status": status, "detail": detail})
