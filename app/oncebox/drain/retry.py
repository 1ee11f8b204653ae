"""Retry: when a failed delivery is tried again, and when it is dead. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from oncebox.duration import FOREVER, seconds
from oncebox.model import MICROSECONDS

# Jitter only shortens a wait, so that the ceiling holds.
SPREAD = 0.2
LONGEST = 36_500 * 86_400.0
# Who cannot be reached is looked for at least so often, whatever the ceiling.
LONGEST_SILENCE = 300.0


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how patiently. Times in seconds; `give_up` bounds how long a target may be unreachable."""

    attempts: int = 12
    base: float = 5.0
    factor: float = 3.0
    ceiling: float = 21_600.0
    give_up: float = FOREVER


class Step(msgspec.Struct, frozen=True):
    """What becomes of a delivery: its state, when it is due again, and the failures that count so far."""

    state: str
    due: int
    failures: int


def policy(table: Mapping[str, object]) -> RetryPolicy:
    """A policy as written in code or configuration; raises ValueError that names the key."""
    values: dict[str, object] = {}
    for key, value in table.items():
        if key not in RetryPolicy.__struct_fields__:
            close = get_close_matches(key, RetryPolicy.__struct_fields__, 1)
            hint = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(RetryPolicy.__struct_fields__)}"
            raise ValueError(f'retry has no "{key}"; {hint}')
        values[key] = _value(key, value)
    return RetryPolicy(**values)  # type: ignore[arg-type]  # each value has been checked by its key


def _value(key: str, value: object) -> object:
    if key == "attempts":
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000:
            return value
        raise ValueError(f"retry.attempts is {value!r}; it must be a whole number from 1 to 1000")
    if key == "factor":
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value <= 100:
            return float(value)
        raise ValueError(f"retry.factor is {value!r}; it must be a number from 1 to 100")
    if key == "give_up" and value == "never":
        return FOREVER
    try:
        return span(value)
    except ValueError as error:
        raise ValueError(f"retry.{key}: {error}") from error


def span(value: object) -> float:
    """A duration as text or as a number of seconds; raises ValueError."""
    if isinstance(value, str):
        return seconds(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(min(value, LONGEST))
    raise ValueError(f'{value!r} is no duration; write "5s", "10m", or a number of seconds')


def delay(policy: RetryPolicy, failure: int, jitter: float) -> float:
    """The seconds to wait after the n-th failure; `jitter` from 0 to 1 shortens it by up to a fifth."""
    try:
        wait = policy.base * policy.factor ** max(failure - 1, 0)
    except OverflowError:
        wait = policy.ceiling
    return min(wait, policy.ceiling) * (1 - SPREAD * jitter)


def next_step(
    policy: RetryPolicy,
    outcome: str,
    failures: int,
    now: int,
    jitter: float,
    *,
    after: float | None = None,
    dead: bool = False,
    since: int | None = None,
    counts: bool = True,
    tries: int = 0,
) -> Step:
    """What follows an attempt. Only attempts that ran count, so `unreachable` never makes a delivery dead, unless the
    policy gives up: then so long after `since` (unix microseconds, as `now`). `after` replaces the wait in seconds.
    Nor does one that ran count while its target is thought to be down (`counts`). `tries` are all of
    this run: without an answer the wait grows with them, up to LONGEST_SILENCE."""
    if outcome == "ok":
        return Step("done", 0, failures)
    ran = counts and outcome != "unreachable"
    counted = failures + ran
    spent = ran and counted >= policy.attempts
    if dead or spent or _given_up(policy, outcome, now, since):
        return Step("dead", 0, counted)
    wait = delay(policy, failures + 1, jitter) if after is None else min(after, LONGEST)
    if after is None and not ran:
        wait = max(wait, min(delay(policy, tries, jitter), LONGEST_SILENCE))
    return Step("pending", now + round(wait * MICROSECONDS), counted)


def _given_up(policy: RetryPolicy, outcome: str, now: int, since: int | None) -> bool:
    return outcome == "unreachable" and since is not None and now - since >= policy.give_up * MICROSECONDS
