"""Lines of the log that anybody outside can cause."""

from __future__ import annotations

import logging

import pytest

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
