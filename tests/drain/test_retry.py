"""The retry schedule, as a pure decision."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.drain.pace import BURST, Pace
from oncebox.drain.retry import LONGEST, SPREAD, RetryPolicy, delay, next_step, policy, span

NOW = 1_796_000_000_000_000
RAN = ["error", "timeout", "refused", "crashed"]

jitters = st.floats(0, 1)
policies = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 1000),
    base=st.floats(0.001, 3600),
    factor=st.floats(1, 100),
    ceiling=st.floats(0.001, 1e7),
)


@given(policies, st.integers(0, 10_000), jitters)
def test_a_wait_is_never_over_the_ceiling_and_never_negative(given: RetryPolicy, failure: int, jitter: float) -> None:
    assert 0 <= delay(given, failure, jitter) <= given.ceiling


@given(policies, st.integers(1, 1000), jitters)
def test_jitter_shortens_a_wait_by_at_most_a_fifth(given: RetryPolicy, failure: int, jitter: float) -> None:
    whole = delay(given, failure, 0)
    assert whole * (1 - SPREAD) <= delay(given, failure, jitter) * (1 + 1e-12)
    assert delay(given, failure, jitter) <= whole


@given(policies, st.integers(1, 1000))
def test_waits_never_get_shorter(given: RetryPolicy, failure: int) -> None:
    assert delay(given, failure, 0) <= delay(given, failure + 1, 0)


@given(policies, st.sampled_from(RAN), jitters)
def test_a_delivery_that_always_fails_is_dead_after_exactly_its_attempts(
    given: RetryPolicy, outcome: str, jitter: float
) -> None:
    failures = 0
    for attempt in range(1, given.attempts + 1):
        step = next_step(given, outcome, failures, NOW, jitter)
        failures = step.failures
        assert failures == attempt
        assert step.state == ("dead" if attempt == given.attempts else "pending")
        assert step.state == "dead" or NOW <= step.due <= NOW + math.ceil(given.ceiling * 1e6)


@given(policies, st.integers(0, 5000), jitters)
def test_what_is_unreachable_never_counts_and_never_dies(given: RetryPolicy, failures: int, jitter: float) -> None:
    step = next_step(given, "unreachable", failures, NOW, jitter, since=NOW - 10**15)
    assert (step.state, step.failures) == ("pending", failures)


@given(st.floats(0.001, 1e6), st.floats(0, 1e7))
def test_a_policy_that_gives_up_does_so_after_its_time_and_only_when_unreachable(give_up: float, waited: float) -> None:
    given = RetryPolicy(attempts=1000, give_up=give_up)
    since = NOW - round(waited * 1e6)
    step = next_step(given, "unreachable", 3, NOW, 0, since=since)
    assert (step.state == "dead") == (NOW - since >= give_up * 1e6)
    assert next_step(given, "error", 3, NOW, 0, since=since).state == "pending"


@given(policies, st.integers(0, 5000), jitters)
def test_what_is_ok_is_done_whatever_came_before(given: RetryPolicy, failures: int, jitter: float) -> None:
    assert next_step(given, "ok", failures, NOW, jitter).state == "done"


@given(st.floats(0, 1e9), jitters)
def test_a_wait_that_was_asked_for_is_kept_to_the_microsecond(after: float, jitter: float) -> None:
    step = next_step(RetryPolicy(), "error", 0, NOW, jitter, after=after)
    assert step.due == NOW + round(after * 1e6)


def test_a_wait_that_was_asked_for_still_counts_and_giving_up_ends_it_at_once() -> None:
    assert next_step(RetryPolicy(attempts=3), "error", 2, NOW, 0, after=5).state == "dead"
    assert next_step(RetryPolicy(), "refused", 0, NOW, 0, dead=True).state == "dead"
    assert next_step(RetryPolicy(), "error", 0, NOW, 0, after=1e300).due == NOW + round(LONGEST * 1e6)


def test_the_default_schedule_is_five_seconds_then_three_times_as_long_up_to_six_hours() -> None:
    waits = [delay(RetryPolicy(), n, 0) for n in range(1, 12)]
    assert waits[:4] == [5, 15, 45, 135]
    assert waits[-1] == 21_600


def test_a_policy_is_written_in_the_words_of_the_configuration() -> None:
    written = {"attempts": 3, "base": "250ms", "factor": 2, "ceiling": 60, "give_up": "1d"}
    assert policy(written) == RetryPolicy(attempts=3, base=0.25, factor=2.0, ceiling=60.0, give_up=86_400.0)
    assert policy({"give_up": "never"}).give_up == math.inf
    assert policy({}) == RetryPolicy()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"atempts": 3}, 'retry has no "atempts"; did you mean "attempts"?'),
        ({"zzz": 3}, "known are attempts, base, factor, ceiling, give_up"),
        ({"attempts": 0}, "retry.attempts is 0"),
        ({"attempts": True}, "retry.attempts is True"),
        ({"factor": 0.5}, "retry.factor is 0.5"),
        ({"base": "5 s"}, "retry.base: "),
        ({"base": -1}, "retry.base: -1 is no duration"),
        ({"ceiling": float("nan")}, "retry.ceiling: nan is no duration"),
        ({"give_up": None}, "retry.give_up: None is no duration"),
    ],
)
def test_a_wrong_policy_names_its_key(table: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        policy(table)
    assert said in str(caught.value)


@given(st.floats(0, 1e12))
def test_a_span_in_seconds_is_bounded(seconds: float) -> None:
    assert span(seconds) == min(seconds, LONGEST)


@given(st.floats(0.1, 10_000), st.lists(st.floats(0, 0.5), max_size=60))
def test_a_pace_lets_through_no_more_than_its_rate_and_one_burst(rate: float, pauses: list[float]) -> None:
    pace, now, through = Pace(rate), 0.0, 0
    for pause in pauses:
        now += pause
        room = int(pace.room(now))
        pace, through = pace.took(room, now), through + room
        assert pace.room(now) == 0
        assert pace.wait(now) <= 1 / rate * (1 + 1e-6)
    assert through <= now * rate + max(1.0, rate * BURST) + 1e-6


def test_no_rate_lets_everything_through() -> None:
    assert Pace(None).took(10**6, 1.0).room(1.0) == math.inf


def test_who_cannot_be_reached_is_looked_for_less_and_less_often_but_every_five_minutes() -> None:
    steps = [next_step(RetryPolicy(), "unreachable", 0, NOW, 0, tries=tries) for tries in (1, 2, 3, 5, 500)]
    assert [(step.due - NOW) / 1_000_000 for step in steps] == [5, 15, 45, 300, 300]
    soon = next_step(RetryPolicy(ceiling=60.0), "unreachable", 0, NOW, 0, tries=500)
    assert soon.due - NOW == 60_000_000
