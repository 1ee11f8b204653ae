"""Room: whatever sources do, one that has nothing finds a slot."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.drain.ahead import MOST, QUICK, Ahead
from oncebox.drain.room import HISTORY, KEPT, Room

SLOTS = st.integers(1, 64)


def filled(room: Room, *sources: str) -> Room:
    """After each of these has got all it may have, one after the other, again and again."""
    before = None
    while before != room:
        before = room
        for source in sources:
            room = room.took(source, room.starts(source), history=source == HISTORY)
    return room


@given(slots=st.integers(2, 64), prompt=st.booleans(), known=st.booleans())
def test_one_source_leaves_one_slot_and_another_gets_it(slots: int, prompt: bool, known: bool) -> None:
    reach = {"a", "b"} if known else None
    room = filled(Room(slots, slots, prompt=frozenset({"a"} if prompt else ()), reach=reach), "a")
    assert room.free >= 1
    assert room.starts("b") >= 1
    if prompt:
        assert room.held["a"] == slots - (1 if known else max(1, slots // KEPT))


@given(slots=st.integers(8, 64), first=st.sampled_from(["a", HISTORY]))
def test_of_eight_slots_and_more_two_that_hang_at_once_leave_the_third_one(slots: int, first: str) -> None:
    room = filled(Room(slots, slots, prompt=frozenset({first, "b"}), reach={"a", "b", "c"}), first, "b")
    assert room.starts("c") >= 1


@given(slots=st.integers(3, 64), first=st.booleans())
def test_two_that_may_hang_leave_the_third_a_slot(slots: int, first: bool) -> None:
    order = ("a", "b") if first else ("b", "a")
    room = filled(Room(slots, slots, reach={"a", "b", "c"}), *order)
    assert room.starts("c") >= 1


@given(slots=SLOTS)
def test_one_that_has_the_target_alone_gets_all_of_it(slots: int) -> None:
    assert Room(slots, slots, reach={"a"}).starts("a") == slots


@given(slots=st.integers(2, 64))
def test_when_all_have_something_nothing_is_left_idle(slots: int) -> None:
    prompt = frozenset({"a", "b"})
    assert filled(Room(slots, slots, prompt=prompt, reach={"a", "b"}), "a", "b").free == 0


@given(slots=st.integers(2, 64), prompt=st.booleans(), others=st.booleans())
def test_a_rerun_never_has_the_last_slot(slots: int, prompt: bool, others: bool) -> None:
    room = Room(slots, slots, prompt=frozenset({HISTORY} if prompt else ()), reach={"a"})
    room = filled(room, HISTORY)
    assert room.free >= 1
    assert 1 <= room.held[HISTORY] < slots
    assert room.starts("b" if others else "a") >= 1


def test_the_one_slot_of_a_target_is_for_reruns_too() -> None:
    assert Room(1, 1).starts(HISTORY) == 1


@settings(max_examples=1000)
@given(
    slots=SLOTS,
    ahead=st.integers(0, 300),
    prompt=st.frozensets(st.sampled_from(["a", "b", HISTORY])),
    takes=st.lists(st.tuples(st.sampled_from(["a", "b", "c", HISTORY]), st.integers(1, 40)), max_size=20),
)
def test_never_more_than_there_is(slots: int, ahead: int, prompt: frozenset[str], takes: list[tuple[str, int]]) -> None:
    room, taken = Room(slots, slots, prompt=prompt, reach={"a", "b", "c"}, ahead=ahead), 0
    for party, count in takes:
        source, history = (party or "a"), party == HISTORY
        count = min(count, room.most(source, history=history))  # noqa: PLW2901  # what is given
        room, taken = room.took(source, count, history=history), taken + count
        assert room.free >= 0
        assert sum(room.held.values()) == slots - room.free
        if party not in prompt:
            assert count <= slots
    assert taken <= slots + ahead


@given(ended=st.integers(0, 10**6), span=st.floats(0, 100))
def test_only_what_is_quick_over_a_while_is_claimed_in_advance(ended: int, span: float) -> None:
    ahead = Ahead(since=1000.0).after(ended, 1000.0 + span, 16)
    assert 0 <= ahead.count <= MOST
    if ahead.count:
        assert ended >= min(QUICK * span * 0.99, 64)


def test_a_burst_of_a_slow_target_is_not_taken_for_speed() -> None:
    ahead = Ahead(since=1.0).after(16, 1.001, 16)
    assert ahead.count == 0
    assert ahead.after(16, 1.051, 16).count == 0
    assert ahead.after(64, 1.051, 16).count > 0
    assert ahead.after(64, 1.01, 16).count > 0
