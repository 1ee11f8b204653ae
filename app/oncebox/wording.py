"""Wording: values and misspelt words as refusals show them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date, datetime, time
from difflib import get_close_matches


def shown(value: object) -> str:
    """A value as the file has it, short, on one line, without credentials of a URL."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, datetime | date | time):
        return str(value)
    text = re.sub(r"//[^/@]*@", "//…@", json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 else f"{text[:57]}…"


def wrong(value: object, allowed: str) -> ValueError:
    """The refusal of a value that is not what is `allowed`."""
    return ValueError(f"{shown(value)} is not {allowed}")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean "X"?` for the known word closest to a misspelt one, else nothing."""
    found = closest(word, known)
    return f'; did you mean "{found}"?' if found else ""


def closest(word: str, known: Iterable[str]) -> str:
    """The known word closest to a misspelt one; "" where none is close."""
    names = {name.lower(): name for name in known}
    return next((names[found] for found in get_close_matches(word.lower(), list(names), n=1, cutoff=0.65)), "")
