"""Durations, sizes and rates as people write them: `"5s"`, `"64KiB"`, `"50/s"`. Pure."""

from __future__ import annotations

import math
import re
from decimal import Decimal

FOREVER = math.inf
DURATION = 'a duration such as "250ms", "5s", "10m", "1h" or "30d"'
SIZE = 'a size such as "512B", "64KiB", "5MiB" or "20GiB"'
RATE = 'a rate such as "50/s", "600/m" or "1000/h"'

_DURATIONS = {
    "d": Decimal(86_400),
    "h": Decimal(3_600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_SIZES = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_RATES = {"s": 1, "m": 60, "h": 3_600}
# Longer ones would overflow datetimes and SQLite's integers further on, far from the key that caused it.
_LONGEST = 36_500 * 86_400
_LARGEST = 1 << 50


def seconds(text: str) -> float:
    """A duration in seconds, exact to the microsecond; raises ValueError saying what is allowed."""
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", text)
    if not found:
        raise ValueError(f'"{text}" is not {DURATION}')
    value = Decimal(found[1]) * _DURATIONS[found[2]]
    if value > _LONGEST:
        raise ValueError(f'"{text}" is too long; the longest is "36500d"')
    return round(float(value), 6)


def size(text: str) -> int:
    """A size in bytes; raises ValueError saying what is allowed."""
    found = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)(B|KiB|MiB|GiB|TiB)", text)
    if not found:
        raise ValueError(f'"{text}" is not {SIZE}')
    value = Decimal(found[1]) * _SIZES[found[2]]
    if value > _LARGEST:
        raise ValueError(f'"{text}" is too large; the largest is "1024TiB"')
    return int(value)


def rate(text: str) -> float:
    """A rate per second, above zero; raises ValueError saying what is allowed."""
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)/(s|m|h)", text)
    if not found or not Decimal(found[1]):
        raise ValueError(f'"{text}" is not {RATE}')
    return float(Decimal(found[1]) / _RATES[found[2]])


def show_seconds(value: float) -> str:
    """A duration in the largest unit that keeps it whole; `seconds` reads it back unchanged."""
    micros = round(value * 1_000_000)
    for unit, length in _DURATIONS.items():
        count, rest = divmod(micros, int(length * 1_000_000))
        if count and not rest:
            return f"{count}{unit}"
    return f"{Decimal(micros) / 1_000_000:f}s"


def show_size(value: int) -> str:
    """A size in the largest unit that keeps it whole; `size` reads it back unchanged."""
    for unit, length in _SIZES.items():
        if value >= length and value % length == 0:
            return f"{value // length}{unit}"
    return "0B"
