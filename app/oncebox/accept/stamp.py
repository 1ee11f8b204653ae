"""Stamps: the time a sender claims to have signed at, and how far from now it may be."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from oncebox.accept.spec import ANY_AGE, Timestamp, refusal

_SECONDS = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_MILLISECONDS = re.compile(rb"[0-9]{1,15}")


def compile_limits(spec: Timestamp) -> Callable[[bytes, int], None]:
    """A check of a time as it was sent against `now` in unix seconds; raises Rejected with the distance in words."""
    read = _READERS[spec.unit]
    past, future = spec.past, spec.future
    if past == future == ANY_AGE:
        # Its form is still held to: else the border between time and body could be moved where nothing parts them.
        return lambda raw, now: _held(read, raw)

    def check(raw: bytes, now: int) -> None:
        age = now - read(raw)
        if age > past:
            raise refusal(f"signed {_count(age)} s ago, or the sender's clock is behind; {_count(past)} s are allowed")
        if -age > future:
            raise refusal(f"the sender's clock is {_count(-age)} s ahead; {_count(future)} s are allowed")

    return check


def write_stamp(spec: Timestamp, now: int) -> str:
    """The time in the sender's own writing."""
    if spec.unit == "iso":
        return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(now * 1000 if spec.unit == "ms" else now)


def _seconds(raw: bytes) -> float:
    if not _SECONDS.fullmatch(raw):
        raise refusal("the timestamp is not in unix seconds")
    return float(raw)


def _milliseconds(raw: bytes) -> float:
    if not _MILLISECONDS.fullmatch(raw):
        raise refusal("the timestamp is not in unix milliseconds")
    return int(raw) / 1000


def _iso(raw: bytes) -> float:
    try:
        when = datetime.fromisoformat(raw[:41].decode("ascii"))
        if when.tzinfo is None:
            raise ValueError("no zone")
        return when.timestamp()
    except (ValueError, OverflowError):
        raise refusal("the timestamp is not in ISO 8601 with a time zone") from None


def _held(read: Callable[[bytes], float], raw: bytes) -> None:
    read(raw)


_READERS = {"s": _seconds, "ms": _milliseconds, "iso": _iso}


def _count(seconds: float) -> str:
    return f"{seconds:.0f}"
