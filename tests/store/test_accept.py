"""What a store promises of accepting, for any store."""

from __future__ import annotations

import asyncio
import random
import resource
import sqlite3
from pathlib import Path

import msgspec
import pytest

from oncebox.errors import IdConflict, Overloaded
from oncebox.model import Planned, Reply, Stored
from oncebox.store.group import ROWS
from oncebox.store.queue import WAITING_BYTES, Queue
from oncebox.store.sqlite import SQLiteStore
from oncebox.store.statement import filled, rounded
from store.conftest import NOW, Open, arrival, books_are_right, ended, rows

pytestmark = pytest.mark.anyio


async def test_a_second_event_with_the_same_key_is_a_replay_with_the_first_facts(store: SQLiteStore) -> None:
    [first] = await store.accept([arrival()])
    [again] = await store.accept([arrival(at=NOW + 5_000_000)])
    assert (first.replayed, again.replayed) == (False, True)
    assert (again.seq, again.received_at) == (first.seq, first.received_at)
    assert await rows(store, "select count(*) from events") == [(1,)]


async def test_the_same_id_from_two_sources_is_two_events(store: SQLiteStore) -> None:
    one, other = await store.accept([arrival("b-c", source="a"), arrival("c", source="a-b")])
    third = (await store.accept([arrival("c", source="a")]))[0]
    assert len({one.seq, other.seq, third.seq}) == 3


@pytest.mark.parametrize(
    ("left", "right"), [("evt_A", "evt_a"), ("é", "e\u0301"), ("ß", "SS"), ("1", "１"), ("a", "a_")]
)
async def test_ids_that_only_look_alike_are_different_events(store: SQLiteStore, left: str, right: str) -> None:
    one, other = await store.accept([arrival(left), arrival(right)])
    assert one.seq != other.seq
    assert not other.replayed


async def test_twins_at_one_moment_are_one_event_and_one_answer_is_the_first(store: SQLiteStore) -> None:
    for round in range(200):
        answers = await asyncio.gather(*(store.accept([arrival(f"r{round}")]) for _ in range(16)))
        flat = [answer for [answer] in answers]
        assert len({(a.seq, a.received_at) for a in flat}) == 1
        assert [a.replayed for a in flat].count(False) == 1
    assert await rows(store, "select count(*) from events") == [(200,)]
    await books_are_right(store)


async def test_replays_are_recognised_after_a_restart(open_any: Open) -> None:
    async with open_any() as store:
        [first] = await store.accept([arrival()])
    async with open_any() as store:
        [again] = await store.accept([arrival()])
    assert again == Stored(first.seq, "evt_1", NOW, None, replayed=True)


async def test_replays_carry_their_own_facts_when_new_events_come_between(store: SQLiteStore) -> None:
    [known] = await store.accept([arrival("known")])
    for n in range(500):
        [fresh] = await store.accept([arrival(f"new{n}", at=NOW + n)])
        [again] = await store.accept([arrival("known", at=NOW + n)])
        assert (again.seq, again.received_at) == (known.seq, NOW)
        assert fresh.seq != known.seq


async def test_an_arrival_number_is_never_used_again(open_any: Open) -> None:
    seen: set[int] = set()
    for round in range(3):
        async with open_any() as store:
            answers = await store.accept([arrival(f"{round}-{n}") for n in range(100)])
        numbers = {answer.seq for answer in answers}
        assert not numbers & seen
        assert len(numbers) == 100
        seen |= numbers


async def test_an_accept_of_several_is_all_or_nothing(store: SQLiteStore) -> None:
    await store.accept([arrival("old", b"1")])
    with pytest.raises(IdConflict, match="'old' of source demo"):
        await store.accept([arrival("new"), arrival("old", b"2", reject_conflict=True)])
    assert await rows(store, "select id from events") == [("old",)]


async def test_an_accept_that_fails_does_not_fail_its_neighbours(store: SQLiteStore) -> None:
    await store.accept([arrival("old", b"1")])
    outcomes = await asyncio.gather(
        store.accept([arrival("a")]),
        store.accept([arrival("old", b"2", reject_conflict=True)]),
        store.accept([arrival("lone\ud800")]),
        store.accept([arrival("b")]),
        return_exceptions=True,
    )
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, True, True, False]
    assert sorted(await rows(store, "select id from events")) == [("a",), ("b",), ("old",)]
    await books_are_right(store)


async def test_an_item_twice_in_one_request_is_one_event(store: SQLiteStore) -> None:
    one, two = await store.accept([arrival("x"), arrival("x")])
    assert (one.seq, one.replayed, two.seq, two.replayed) == (one.seq, False, one.seq, True)


async def test_another_body_under_a_known_id_is_kept_aside_and_counted(open_any: Open) -> None:
    async with open_any() as store:
        await store.accept([arrival("x", b"first")])
        for body in (b"second", b"third", b"second", b"fourth", b"fifth"):
            [answer] = await store.accept([arrival("x", body)])
            assert answer.replayed
            assert answer.conflict
    async with open_any() as store:
        assert await rows(store, "select replays, conflicts from replays") == [(5, 5)]
        assert {body for (body,) in await rows(store, "select body from variants")} == {b"second", b"third", b"fourth"}
        assert await rows(store, "select body from payloads") == [(b"first",)]


async def test_a_reply_of_its_own_is_repeated_whatever_the_source_says_today(store: SQLiteStore) -> None:
    given = Reply(200, "text/xml", b"<Response/>")
    await store.accept([arrival("x", reply=given)])
    [again] = await store.accept([arrival("x", reply=Reply(200, "text/plain", b"ok"))])
    [plain] = await store.accept([arrival("y")])
    assert again.reply == given
    assert plain.reply is None


async def test_an_id_made_from_the_body_absorbs_equal_bodies_only_within_its_window(store: SQLiteStore) -> None:
    minute = 60_000_000
    [first] = await store.accept([arrival("hash", window=10 * minute)])
    [soon] = await store.accept([arrival("hash", at=NOW + 9 * minute, window=10 * minute)])
    [late] = await store.accept([arrival("hash", at=NOW + 11 * minute, window=10 * minute)])
    [after] = await store.accept([arrival("hash", at=NOW + 12 * minute, window=10 * minute)])
    assert (soon.seq, soon.replayed) == (first.seq, True)
    assert (late.seq != first.seq, late.replayed) == (True, False)
    assert (after.seq, after.replayed) == (late.seq, True)


async def test_random_groups_of_old_and_new_keep_one_row_for_each_key(store: SQLiteStore) -> None:
    dice = random.Random(7)
    known: dict[str, int] = {}
    for _ in range(60):
        ids = [f"id{dice.randrange(150)}" for _ in range(dice.randrange(1, 90))]
        answers = await asyncio.gather(*(store.accept([arrival(id)]) for id in ids))
        for id, [answer] in zip(ids, answers, strict=True):
            assert answer.seq == known.setdefault(id, answer.seq)
    assert dict(await rows(store, "select id, seq from events")) == known
    await books_are_right(store)


async def test_a_full_queue_says_so_and_loses_nothing(open_any: Open) -> None:
    async with open_any(queue=10) as store:

        async def sent(id: str) -> list[Stored]:
            return await store.accept([arrival(id)])

        outcomes = await asyncio.gather(*(sent(str(n)) for n in range(50)), return_exceptions=True)
        stored = {id for (id,) in await rows(store, "select id from events")}
    refused = [outcome for outcome in outcomes if isinstance(outcome, Overloaded)]
    assert len(refused) == 40
    assert len(stored) == 10


async def test_a_cancelled_accept_leaves_no_open_transaction(store: SQLiteStore) -> None:
    dice = random.Random(3)
    for n in range(300):
        task = asyncio.ensure_future(store.accept([arrival(f"c{n}")]))
        for _ in range(dice.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    [answer] = await store.accept([arrival("after")])
    assert not answer.replayed
    await books_are_right(store)


@pytest.mark.parametrize("count", [190, 191, 400])
async def test_events_with_many_deliveries_fit_into_what_a_statement_may_have(open_any: Open, count: int) -> None:
    async with open_any(router=lambda _: [Planned(f"t{n}") for n in range(9)]) as store:
        store._raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
        answers = await store.accept([arrival(f"e{n}") for n in range(count)])
        assert not any(stored.replayed for stored in answers)
        assert await rows(store, "select count(*) from deliveries") == [(9 * count,)]
        await books_are_right(store)


async def test_events_of_very_many_sources_are_stored_and_settled_together(store: SQLiteStore) -> None:
    store._raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)
    commits = store.books.commits
    await store.accept([arrival(source=f"s{n}") for n in range(900)])
    assert store.books.commits == commits + 1
    claimed = await store.claim("handler", 900, NOW)
    assert len(claimed) == 900
    assert all(await store.settle_all([ended(one) for one in claimed]))
    await books_are_right(store)


def test_a_statement_is_kept_for_few_sizes_of_a_group() -> None:
    sizes = {rounded(count) for count in range(1, ROWS + 1)}
    assert max(sizes) == ROWS
    assert sum(sizes) < 5_000
    assert all(0 <= rounded(count) - count <= max(7, count // 4) for count in range(1, 1000))
    assert [list(filled(range(n))) for n in (1, 9)] == [[0], [*range(9), *[8] * 7]]


async def test_large_bodies_are_not_kept_in_memory_with_the_statements_that_wrote_them(store: SQLiteStore) -> None:
    async def accepted(counts: range) -> int:
        for count in counts:
            await store.accept([arrival(f"{count}-{n}", b"x" * (8 << 20) if n == 0 else b"") for n in range(8 * count)])
        return memory()

    few = await accepted(range(1, 5))
    assert await accepted(range(5, 21)) - few < 48 << 20
    assert await rows(store, "select count(*) from payloads where length(body) = 8388608") == [(20,)]
    await books_are_right(store)


def memory() -> int:
    """What the process holds, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_decoded_bodies_count_for_the_bytes_that_may_wait() -> None:
    async def waiting() -> None:
        queue = Queue(1000)
        wire, decoded = b"x" * 100, bytes(WAITING_BYTES // 2 + 1)
        packed = msgspec.structs.replace(arrival("a", wire), decoded=decoded)
        first = queue.add([packed])
        with pytest.raises(Overloaded):
            queue.add([packed])
        assert [waiting.size for waiting in queue.take()] == [len(wire) + len(decoded)]
        queue.add([packed])
        first.cancel()

    asyncio.run(waiting())


async def test_events_without_a_route_are_counted_as_unrouted(open_any: Open) -> None:
    async with open_any(router=lambda _: ()) as store:
        await store.accept([arrival("x")])
        assert await rows(store, "select state, processed_at from v_events") == [("unrouted", None)]
        assert await rows(store, "select n from totals where what = 'unrouted'") == [(1,)]
