"""An attempt has an outcome that can be stored, whatever the handler raised."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, NoReturn

import pytest

from oncebox.drain.retry import LONGEST, RetryPolicy, span
from oncebox.drain.verdict import ERROR_BYTES, Verdict, bounded, of_error, settled
from oncebox.errors import Dead, EmitError, Retry
from oncebox.headers import Headers
from oncebox.model import Claimed, Event


class Unshowable:
    def __str__(self) -> str:
        raise KeyError("str")

    __repr__ = __str__

    def __format__(self, spec: str) -> NoReturn:
        raise KeyError("format")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class MuteLoop(EmitError):
    def __str__(self) -> str:
        raise ValueError("no words")


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__name__":
            raise ValueError("no name")
        return super().__getattribute__(name)


class Odd(Exception, metaclass=Nameless):
    pass


@pytest.mark.parametrize("error", [Mute(), Exiting(), MuteLoop("x"), Odd("x"), ValueError(Unshowable())])
def test_an_error_that_cannot_be_shown_is_still_an_error(error: Exception) -> None:
    for rerun in (False, True):
        verdict = of_error(error, rerun=rerun)
        assert (verdict.outcome, verdict.dead) == ("error", False)
        assert verdict.error


def test_what_a_handler_asks_for_holds_although_its_words_cannot_be_shown() -> None:
    why: Any = Unshowable()
    assert of_error(Dead(why)).dead
    assert of_error(Retry(why, after="5m")).after == 300
    assert of_error(Retry("later", after=why)).after is None
    assert "after is not understood" in str(of_error(Retry("later", after=why)).error)


def test_a_wait_beyond_all_measure_is_the_longest_one() -> None:
    assert span(10**400) == LONGEST
    assert of_error(Retry("later", after=10**400)).after == LONGEST


def test_a_huge_message_is_bounded_in_little_time() -> None:
    started = time.process_time()
    for error in (Dead("x" * 30_000_000), Retry("é" * 10_000_000), ValueError("\ud800" * 10_000_000)):
        assert len(str(of_error(error).error).encode()) <= ERROR_BYTES
    assert time.process_time() - started < 1


@pytest.mark.parametrize("text", ["lone \ud800", "nul \x00", "é" * 100_000])
def test_what_is_written_down_can_be_stored(text: str) -> None:
    event = Event(
        seq=1,
        source="s",
        id="i",
        type=None,
        received_at=datetime.now(UTC),
        headers=Headers(()),
        content_type="",
        body=b"",
        raw=b"",
    )
    verdict = Verdict(outcome="error", error=text)
    one = settled(Claimed(event, "t", 1, 1, 0), verdict, RetryPolicy(), started_at=0, duration=0, now=0, jitter=0.0)
    assert one.error is not None
    assert len(one.error.encode()) <= ERROR_BYTES
    assert "\x00" not in one.error


def test_the_beginning_and_the_end_of_a_long_text_are_kept() -> None:
    text = bounded("first\n" + "middle " * 100_000 + "\nlast", 100)
    assert text.startswith("first\n")
    assert text.endswith("\nlast")
