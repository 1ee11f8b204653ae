"""Lines of the log that anybody outside can cause."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.errors import StoreError
from oncebox.seldom import KINDS, QUIET, Seldom, kind_of


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_kind_is_told_at_most_every_ten_seconds_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"))
    for now in (5.0, 6.0, QUIET + 4.9, QUIET + 5, QUIET + 6, 2 * QUIET + 5, 5 * QUIET):
        seldom.say(now, "a", "it is wrong")
    assert told(caplog) == [
        "it is wrong",
        "it is wrong (2 more of this kind since it was last told)",
        "it is wrong (1 more of this kind since it was last told)",
        "it is wrong",
    ]


def test_one_kind_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"))
    for kind in ("a", "b", "a"):
        seldom.say(1.0, kind, f"{kind} is wrong")
    assert told(caplog) == ["a is wrong", "b is wrong"]


def test_how_many_seconds_lie_between_two_lines_can_be_said(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"), seconds=300.0)
    for now in (0.0, QUIET, 299.9, 300.0, 300.0 + QUIET, 600.0):
        seldom.say(now, "a", f"wrong at {now:g}")
    assert told(caplog) == [
        "wrong at 0",
        "wrong at 300 (2 more of this kind since it was last told)",
        "wrong at 600 (1 more of this kind since it was last told)",
    ]


class Log(logging.Logger):
    """Remembers the last line."""

    line = ""

    def handle(self, record: logging.LogRecord) -> None:
        self.line = record.getMessage()


Saying = list[tuple[int, int]]


def heard(saying: Saying, seconds: int) -> list[tuple[int, int, str]]:
    """After each pause a kind is said: when, which, and what was told."""
    log, now, found = Log("oncebox.test"), 0, []
    seldom = Seldom(log, seconds=seconds)
    for pause, kind in saying:
        now, log.line = now + pause, ""
        seldom.say(now, str(kind), "wrong")
        found.append((now, kind, log.line))
    return found


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=100), st.integers(1, 30))
def test_every_kind_is_told_as_soon_as_it_may_be_and_every_repeat_is_counted(saying: Saying, seconds: int) -> None:
    again_at: dict[int, int] = {}
    untold: Counter[int] = Counter()
    for now, kind, line in heard(saying, seconds):
        if now < again_at.get(kind, 0):
            assert line == ""
            untold[kind] += 1
            continue
        more = untold.pop(kind, 0)
        assert line == (f"wrong ({more} more of this kind since it was last told)" if more else "wrong")
        again_at[kind] = now + seconds


@given(st.binary(min_size=2 * KINDS, max_size=6 * KINDS), st.integers(1, 30))
def test_in_no_span_are_there_more_lines_than_kinds(crowd: bytes, seconds: int) -> None:
    saying = [(7 if byte % 16 == 0 else 0, byte % (3 * KINDS)) for byte in crowd]
    times = [now for now, _, line in heard(saying, seconds) if line]
    assert all(bisect_left(times, at + seconds) - position <= KINDS + 1 for position, at in enumerate(times))


def test_of_many_kinds_those_that_are_over_give_their_place_to_others(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"))
    first = [f"{number} is wrong" for number in range(KINDS + 3)]
    later = [f"{number} is wrong later" for number in range(KINDS)]
    for line in first:
        seldom.say(0.0, line, line)
    for line in later:
        seldom.say(QUIET, line, line)
    assert told(caplog) == [
        *first[: KINDS + 1],
        *later[: KINDS - 1],
        f"{later[-1]} (2 more of this kind since it was last told)",
    ]


def test_however_many_kinds_there_are_the_lines_are_few(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"), logging.WARNING)
    for number in range(10_000):
        seldom.say(number / 1000, str(number), "wrong")
    assert len(caplog.records) == KINDS + 1
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_traceback_is_told_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"))
    for text in ("first", "second"):
        try:
            raise ValueError(text)
        except ValueError as error:
            seldom.say(1.0, kind_of(error), "failed", error)
    assert len(caplog.records) == 1
    assert "ValueError: first" in caplog.text
    assert kind_of(ValueError("never raised")) == "ValueError "


def test_a_fault_of_ours_says_all_in_one_line_and_any_other_where_it_was_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"))
    seldom.say(0.0, "a", "it stands still", StoreError("the disk is full"))
    seldom.say(0.0, "b", "it stands still", ValueError("why"))
    assert told(caplog) == ["it stands still: the disk is full", "it stands still"]
    assert [record.exc_info is None for record in caplog.records] == [True, False]
