"""Filters: what a person asks for, from texts to a selection. Pure: `now` is unix microseconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches

from oncebox.duration import seconds
from oncebox.errors import Rejected
from oncebox.model import unix
from oncebox.store.listing import STATES, Selection

EVENTS = ("source", "type", "state", "since", "until", "q", "body", "limit", "cursor")
LIMIT, MOST = 50, 500
LONGEST = 1024
LARGEST = (1 << 63) - 1
_RFC3339 = r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)"


def bad_request(detail: str) -> Rejected:
    """The refusal of a question that cannot be understood."""
    return Rejected(400, "bad-request", detail)


def check_names(given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a parameter that does not exist: ignored, it would answer another question than was asked."""
    names = list(known)
    for name in given:
        if name not in names:
            close = get_close_matches(name, names, 1)
            hint = f'did you mean "{close[0]}"?' if close else f"known are: {', '.join(names) or 'none'}"
            raise bad_request(f'unknown parameter "{name[:60]}"; {hint}')


def read_selection(given: Mapping[str, str], now: int, generation: str) -> Selection:
    """The filters of a list of events. Raises Rejected 400 that names the parameter."""
    check_names(given, EVENTS)
    state = _text(given, "state")
    if state is not None and state not in STATES:
        close = get_close_matches(state, STATES, 1)
        hint = f'did you mean "{close[0]}"?' if close else f"known are: {', '.join(STATES)}"
        raise bad_request(f'state: "{state[:60]}" is none; {hint}')
    body = _text(given, "body")
    return Selection(
        source=_text(given, "source"),
        type=_text(given, "type"),
        state=state,
        since=read_time(given, "since", now),
        until=read_time(given, "until", now),
        q=_text(given, "q"),
        body=None if body is None else body.encode("utf-8", "surrogatepass"),
        limit=read_limit(given),
        before=read_cursor(given, generation),
    )


def read_limit(given: Mapping[str, str]) -> int:
    """How many are asked for."""
    return read_count(given, "limit", LIMIT, MOST)


def read_count(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`."""
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise bad_request(f'{name}: "{text[:60]}" is not a whole number from 1 to {most}')
    return int(text)


def read_time(given: Mapping[str, str], name: str, now: int) -> int | None:
    """RFC 3339, or how long ago ("2h")."""
    text = given.get(name)
    if text is None:
        return None
    try:
        return now - round(seconds(text) * 1_000_000)
    except ValueError:
        pass
    try:
        if re.fullmatch(_RFC3339, text):
            return unix(datetime.fromisoformat(text.upper()))
    except (ValueError, OverflowError):
        pass
    raise bad_request(
        f'{name}: "{text[:60]}" is neither a time such as "2026-12-02T01:02:03Z" nor a duration back from now '
        'such as "2h" (a "+" in a URL is written %2B)'
    )


def write_cursor(generation: str, before: int | None) -> str | None:
    """Where a list goes on; only good for this file as it is now, not for one that was restored."""
    return None if before is None else f"{generation}.{before:x}"


def read_cursor(given: Mapping[str, str], generation: str) -> int | None:
    """The number that a list goes on below."""
    text = given.get("cursor")
    if text is None:
        return None
    made, _, position = text.partition(".")
    if not re.fullmatch("[0-9a-f]{1,15}", position):
        raise bad_request('cursor: is not one that was given out here; take "next" of the page before as it is')
    if made != generation:
        raise bad_request("cursor: was made before this file was restored; begin without one")
    return int(position, 16)


def _text(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name)
    if text is None:
        return None
    if not text or len(text) > LONGEST:
        raise bad_request(f"{name}: has {len(text)} characters; 1 to {LONGEST} are allowed, or leave it out")
    if "\0" in text:
        raise bad_request(f"{name}: has a NUL in it")
    return text
