"""The breaker and the share of new events, as pure decisions."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from oncebox.drain.backlog import ONE_IN, Backlog
from oncebox.drain.breaker import DIFFERENT, IN_A_ROW, LONGEST_COOL_DOWN, Breaker, breaker

ends = st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=60)


def failed(state: Breaker, seqs: list[int], now: float = 0.0) -> Breaker:
    for seq in seqs:
        state = state.ended(seq, now, down=True)
    return state


def opened() -> Breaker:
    return failed(Breaker(first=2.0), [*range(IN_A_ROW)])


def test_it_opens_after_ten_in_a_row_and_not_before() -> None:
    assert not failed(Breaker(), [*range(IN_A_ROW - 1)]).open
    assert opened().open


@given(st.lists(st.integers(1, DIFFERENT - 1), max_size=200))
def test_less_than_three_events_never_open_it(seqs: list[int]) -> None:
    assert not failed(Breaker(), seqs).open


@given(ends)
def test_it_is_open_only_after_ten_failures_in_a_row_of_three_events(history: list[tuple[int, bool]]) -> None:
    state = Breaker()
    row: list[int] = []
    for seq, down in history:
        state = state.ended(seq, 0.0, down=down)
        row = [*row, seq] if down else []
        assert state.open is any(
            len(row[:end]) >= IN_A_ROW and len(set(row[:end])) >= DIFFERENT for end in range(len(row) + 1)
        )


@given(ends)
def test_an_event_that_is_answered_with_its_own_error_for_ever_opens_nothing(history: list[tuple[int, bool]]) -> None:
    state = opened()
    for seq, down in history:
        state = state.ended(seq, 0.0, down=down)
    assert not state.ended(7, 0.0, down=False).open


def test_closed_it_lets_everything_through() -> None:
    assert Breaker().room(0.0) == math.inf
    assert Breaker().rest(0.0) == 0.0


def test_open_it_lets_nothing_through_until_the_cool_down_is_over_and_then_one() -> None:
    state = opened()
    assert state.room(1.9) == 0
    assert state.rest(0.5) == 1.5
    assert state.room(2.0) == 1
    probing = state.started(4)
    assert probing.room(100.0) == 0
    assert probing.rest(100.0) == math.inf


def test_a_failed_probe_doubles_the_cool_down_up_to_its_longest() -> None:
    state, now, waits = opened(), 2.0, []
    for seq in range(12):
        state = state.started(seq).ended(seq, now, down=True)
        waits.append(state.rest(now))
        now = state.until
    assert waits[:4] == [4.0, 8.0, 16.0, 32.0]
    assert waits[-1] == LONGEST_COOL_DOWN


def test_those_still_in_flight_when_it_opened_neither_double_nor_probe() -> None:
    state = opened()
    assert state.ended(99, 1.0, down=True) == state
    probing = state.started(4)
    assert probing.ended(99, 3.0, down=True).probe == 4


def test_a_probe_that_was_given_back_makes_room_for_another() -> None:
    assert opened().started(4).withdrawn(4).room(2.0) == 1
    assert opened().started(4).withdrawn(5).room(2.0) == 0


def test_a_receiver_that_names_its_time_is_not_probed_before() -> None:
    state = opened().started(1).ended(1, 2.0, down=True, after=60.0)
    assert state.rest(2.0) == 60.0


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_any_schedule_gives_a_cool_down_that_waits_and_ends(base: float, ceiling: float) -> None:
    state = breaker(base, ceiling)
    assert 0 < state.first <= state.longest <= LONGEST_COOL_DOWN


@given(st.lists(st.integers(1, 9), min_size=1, max_size=100))
def test_one_slot_in_four_is_kept_for_new_events(rooms: list[int]) -> None:
    backlog, kept = Backlog(since=1), 0
    for room in rooms:
        kept += backlog.kept(room)
        backlog = backlog.after(room, room)
    assert kept == sum(rooms) // ONE_IN


def test_without_a_backlog_nothing_is_kept() -> None:
    assert Backlog().kept(100) == 0
    assert Backlog(since=1).after(4, 3).kept(100) == 0
