"""Durations, sizes and rates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.duration import rate, seconds, show_seconds, show_size, size

LENGTHS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@settings(max_examples=1000)
@given(st.integers(0, 36_500), st.sampled_from(sorted(LENGTHS)))
def test_a_duration_is_its_number_times_its_unit(count: int, unit: str) -> None:
    assert seconds(f"{count}{unit}") == pytest.approx(count * LENGTHS[unit], abs=1e-9)


@settings(max_examples=1000)
@given(st.integers(0, 36_500 * 86_400 * 1_000_000))
def test_a_shown_duration_reads_back_to_the_same_microsecond(micros: int) -> None:
    value = round(micros / 1_000_000, 6)
    assert seconds(show_seconds(value)) == value


@settings(max_examples=1000)
@given(st.integers(0, 1024), st.sampled_from(sorted(BYTES)))
def test_a_size_is_its_number_times_its_unit(count: int, unit: str) -> None:
    assert size(f"{count}{unit}") == count * BYTES[unit]


@settings(max_examples=1000)
@given(st.integers(0, 2**50))
def test_a_shown_size_reads_back_unchanged(count: int) -> None:
    assert size(show_size(count)) == count


@settings(max_examples=1000)
@given(st.text(max_size=12))
def test_any_other_text_is_refused_with_an_example_and_never_another_error(text: str) -> None:
    for read, example in ((seconds, '"5s"'), (size, '"5MiB"'), (rate, '"50/s"')):
        message = refused(read, text)
        assert message is None or example in message or "too l" in message


def refused(read: Callable[[str], float], text: str) -> str | None:
    try:
        read(text)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("text", "value"), [("250ms", 0.25), ("5s", 5.0), ("1.5h", 5400.0), ("10m", 600.0), ("30d", 2_592_000.0)]
)
def test_durations_as_documented(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    "text", ["", "5", "s", "5 s", "5S", "-5s", "5min", "1h30m", "٥s", "5s\n", "1e3s", ".5s", "inf"]
)
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        seconds(text)


@pytest.mark.parametrize("text", ["", "5", "5MB", "5mib", "5 MiB", "-1B", "1e3B", "5MiB\n"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as"):
        size(text)


def test_a_duration_or_size_beyond_all_reason_is_refused_rather_than_overflowing_later() -> None:
    with pytest.raises(ValueError, match="too long"):
        seconds("99999999999d")
    with pytest.raises(ValueError, match="too large"):
        size("99999999TiB")


@pytest.mark.parametrize(("text", "value"), [("50/s", 50.0), ("600/m", 10.0), ("1800/h", 0.5), ("0.5/s", 0.5)])
def test_rates_are_per_second(text: str, value: float) -> None:
    assert rate(text) == value


@pytest.mark.parametrize("text", ["50", "0/s", "50/d", "/s", "-1/s", "50/ s"])
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate such as"):
        rate(text)
