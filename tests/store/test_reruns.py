"""History that is processed again: what is queued, what is left alone, and that the books stay right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oncebox.model import Arrival, Claimed, Planned
from oncebox.store import Transaction
from oncebox.store.care import Care
from oncebox.store.choice import Choice, Piece, bounds, piece, unknown
from oncebox.store.reruns import Rerun, cancel, create, feed, find_rerun, open_reruns, waiting
from oncebox.store.settles import pass_dead
from oncebox.store.sqlite import SQLiteStore, open_store
from store.conftest import NOW, Open, Running, arrival, books_are_right, drain, ended, rows

pytestmark = pytest.mark.anyio

SECOND = 1_000_000
MINUTE = 60 * SECOND


def by_type(arrival: Arrival) -> Sequence[Planned]:
    """`lost` events go nowhere, `both` to two targets, `a:…` are in order by what follows."""
    kind = arrival.type or ""
    if kind == "lost":
        return ()
    if kind == "both":
        return (Planned("handler"), Planned("other"))
    return (Planned("handler", kind if kind.startswith("a:") else None),)


@pytest.fixture
async def box(open_any: Open) -> Any:
    async with open_any(router=by_type) as opened:
        yield opened


async def order(store: SQLiteStore, choice: Choice, *, again: bool = False, rate: float | None = None) -> int:
    """Write a rerun down as the API does."""
    between = await store.read(lambda db: bounds(db, choice))
    matched = len((await look(store, choice, *between)).picked)
    return await store.change(
        lambda db, _: create(
            db, choice, rate=rate, again=again, matched=matched, between=between, who="boss", now=NOW + 2
        )
    )


async def look(store: SQLiteStore, choice: Choice, after: int, upto: int, limit: int = 100_000) -> Piece:
    return await store.read(lambda db: piece(db, choice, after, upto, limit, store.routing))


async def step(store: SQLiteStore, id: int, limit: int = 100_000) -> set[str]:
    """One step of the feeder."""
    one = await rerun(store, id)
    found = await look(store, one.choice, one.position, one.upto, limit)
    return await store.change(lambda db, books: feed(db, one, found, NOW + 1, books, store.routing.skipping))


async def rerun(store: SQLiteStore, id: int) -> Rerun:
    found = await store.read(lambda db: find_rerun(db, id))
    assert found is not None
    return found


async def run_again(store: SQLiteStore, choice: Choice, *, again: bool = False) -> Rerun:
    id = await order(store, choice, again=again)
    await step(store, id)
    return await rerun(store, id)


async def end_all(store: SQLiteStore, state: str, target: str = "handler", **more: Any) -> list[str]:
    """Claim and settle until nothing is due; the ids in the order in which they ran."""
    ran: list[str] = []
    while found := await store.claim(target, 100, NOW + 3):
        for claimed in found:
            ran.append(claimed.event.id)
            await store.settle(ended(claimed, state, **more))
    return ran


async def states(store: SQLiteStore) -> list[tuple[Any, ...]]:
    """(id, target, state, run, attempts, lane) of every delivery."""
    return await rows(
        store,
        "select e.id, d.target, d.state, d.run, d.attempts, d.lane from v_deliveries d join events e on e.seq = d.seq "
        "order by d.seq, d.target",
    )


async def test_a_dead_delivery_starts_over_and_its_last_attempt_is_kept(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1")])
    await end_all(box, "dead", error="no such table")
    found = await run_again(box, Choice(state="dead"))
    assert (found.state, found.matched, found.queued, found.skipped) == ("running", 1, 1, 0)
    assert await states(box) == [("evt_1", "handler", "pending", 2, 0, 1)]
    assert await rows(box, "select processed_at, error, outcome from v_deliveries") == [(None, None, None)]
    await books_are_right(box)
    assert await end_all(box, "done") == ["evt_1"]
    found = await rerun(box, found.id)
    assert (found.state, found.done, found.dead, found.finished_at) == ("done", 1, 0, NOW + 1)
    assert await rows(box, "select run, number, outcome, detail from attempts") == [(1, 1, "error", "no such table")]
    await books_are_right(box)


async def test_a_success_that_is_overwritten_leaves_its_attempt_behind(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1")])
    await end_all(box, "done")
    await run_again(box, Choice(seqs=(1,)))
    await end_all(box, "dead", error="worse now")
    assert await rows(box, "select run, number, outcome from attempts order by 1") == [(1, 1, "ok"), (2, 1, "error")]
    [found] = [await rerun(box, 1)]
    assert (found.state, found.done, found.dead) == ("done", 0, 1)
    await books_are_right(box)


async def test_what_is_not_finished_is_left_alone_and_counted(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1"), arrival("evt_2"), arrival("evt_3")])
    [first] = await box.claim("handler", 1, NOW)
    await box.settle(ended(first))
    [second] = await box.claim("handler", 1, NOW)
    found = await run_again(box, Choice(source="demo"))
    assert (found.matched, found.queued, found.skipped) == (1, 1, 2)
    assert [one[2:4] for one in await states(box)] == [("pending", 2), ("running", 1), ("pending", 1)]
    assert await box.settle(ended(second))
    await books_are_right(box)


async def test_a_late_result_of_the_run_before_changes_nothing(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1")])
    [claimed] = await box.claim("handler", 1, NOW)
    await box.settle(ended(claimed, "dead"))
    await run_again(box, Choice(state="dead"))
    assert not await box.settle(ended(claimed))
    assert [one[2:5] for one in await states(box)] == [("pending", 2, 0)]


async def test_live_events_are_claimed_before_reruns(box: SQLiteStore) -> None:
    await box.accept([arrival("old")])
    await end_all(box, "done")
    await run_again(box, Choice(seqs=(1,)))
    await box.accept([arrival("new")])
    assert await end_all(box, "done") == ["new", "old"]


async def test_a_filter_means_deliveries_in_that_state_and_targets_narrow_it(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1", type="both"), arrival("evt_2", type="both")])
    await end_all(box, "done")
    await end_all(box, "dead", "other")
    found = await run_again(box, Choice(state="dead"))
    assert found.queued == 2
    assert [one[1:4] for one in await states(box)] == [("handler", "done", 1), ("other", "pending", 2)] * 2
    await end_all(box, "dead", "other")
    assert (await run_again(box, Choice(state="dead", to=("handler",)))).queued == 0
    assert (await run_again(box, Choice(source="demo", to=("handler",)))).queued == 2
    await books_are_right(box)


@pytest.mark.parametrize(
    ("choice", "matched"),
    [
        (Choice(type="invoice.*"), 2),
        (Choice(type="invoice.paid"), 1),
        (Choice(source="other"), 1),
        (Choice(source="nobody"), 0),
        (Choice(since=NOW + 5 * 60 * MINUTE), 1),
        (Choice(until=NOW + MINUTE), 3),
        (Choice(where={"/live": True}), 1),
        (Choice(where={"/live": 1}), 0),
        (Choice(seqs=(1, 3)), 2),
        (Choice(), 4),
    ],
)
async def test_filters_choose(box: SQLiteStore, choice: Choice, matched: int) -> None:
    await box.accept([arrival("evt_1", type="invoice.paid", body=b'{"live":true}')])
    await box.accept([arrival("evt_2", type="invoice.failed", body=b'{"live":false}')])
    await box.accept([arrival("evt_3", source="other", body=b"not json")])
    await box.accept([arrival("evt_4", at=NOW + 6 * 60 * MINUTE)])
    while found := await box.claim("handler", 10, NOW + 9 * 60 * MINUTE):
        for claimed in found:
            await box.settle(ended(claimed))
    assert (await run_again(box, choice)).queued == matched
    await books_are_right(box)


async def test_unrouted_events_get_todays_routes(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1", type="lost"), arrival("evt_2", type="lost"), arrival("evt_3")])
    assert (await run_again(box, Choice(state="unrouted"))).queued == 0
    box.routing.router = lambda one: (Planned("new", "key"),) if one.type == "lost" else ()
    found = await run_again(box, Choice(state="unrouted"))
    assert (found.matched, found.queued) == (2, 2)
    assert [one[1:4] for one in await states(box)] == [
        ("new", "pending", 1), ("new", "parked", 1), ("handler", "pending", 1),
    ]  # fmt: skip
    assert await rows(box, "select sum(n) from totals where what = 'unrouted'") == [(0,)]
    assert await end_all(box, "done", "new") == ["evt_1", "evt_2"]
    assert (await rerun(box, found.id)).state == "done"
    await books_are_right(box)


async def test_a_new_target_gets_the_history_of_events_that_went_elsewhere(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1"), arrival("evt_2", type="lost")])
    await end_all(box, "done")
    assert (await run_again(box, Choice(source="demo", to=("new",)))).queued == 2
    assert [one[:4] for one in await states(box)] == [
        ("evt_1", "handler", "done", 1), ("evt_1", "new", "pending", 1), ("evt_2", "new", "pending", 1),
    ]  # fmt: skip
    assert (await run_again(box, Choice(source="demo", to=("new",)))).queued == 0
    await books_are_right(box)


async def test_a_target_that_goes_away_before_its_turn_gets_nothing(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1"), arrival("evt_2", type="lost")])
    await end_all(box, "done")
    id = await order(box, Choice(source="demo", to=("new",)))
    box.routing._targets = frozenset({"handler", "other"})  # as after a restart without it
    await step(box, id)
    one = await rerun(box, id)
    assert (one.state, one.matched, one.queued, one.skipped) == ("done", 2, 0, 2)
    await books_are_right(box)


async def test_an_event_without_a_body_does_not_run_again(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1"), arrival("evt_2")])
    await end_all(box, "done")
    id = await order(box, Choice(source="demo"))
    one = await rerun(box, id)
    found = await look(box, one.choice, one.position, one.upto)
    await box.change(lambda db, _: db.execute("delete from payloads where seq = 1"))
    await box.change(lambda db, books: feed(db, one, found, NOW + 1, books))
    one = await rerun(box, id)
    assert (one.queued, one.skipped) == (1, 1)
    assert (await look(box, Choice(source="demo"), 0, 2)).skipped == 2
    await books_are_right(box)


async def test_numbers_that_no_event_has_are_told(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1")])
    assert await box.read(lambda db: unknown(db, (1, 2, 99))) == [2, 99]


# Order


async def test_a_dead_head_that_is_run_again_frees_its_key(box: SQLiteStore) -> None:
    await box.accept([arrival(f"evt_{n}", type="a:1") for n in range(3)])
    assert await end_all(box, "dead") == ["evt_0"]
    await run_again(box, Choice(state="dead"))
    assert [one[2] for one in await states(box)] == ["pending", "parked", "parked"]
    assert await end_all(box, "done") == ["evt_0", "evt_1", "evt_2"]
    await books_are_right(box)


async def test_finished_events_of_a_key_run_again_one_after_another(box: SQLiteStore) -> None:
    await box.accept([arrival(f"evt_{n}", type="a:1") for n in range(4)])
    await end_all(box, "done")
    found = await run_again(box, Choice(source="demo"))
    assert [one[2] for one in await states(box)] == ["pending", "parked", "parked", "parked"]
    assert await end_all(box, "done") == ["evt_0", "evt_1", "evt_2", "evt_3"]
    assert (await rerun(box, found.id)).state == "done"
    await books_are_right(box)


async def test_a_rerun_waits_for_what_is_in_flight_of_its_key(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_0", type="a:1"), arrival("evt_1", type="a:1")])
    [first] = await box.claim("handler", 5, NOW)
    await box.settle(ended(first))
    [second] = await box.claim("handler", 5, NOW + 2)
    await run_again(box, Choice(seqs=(1,)))
    assert [one[2] for one in await states(box)] == ["parked", "running"]
    await box.settle(ended(second, "dead"))
    assert [one[2] for one in await states(box)] == ["pending", "dead"]
    await run_again(box, Choice(state="dead"))
    assert [one[2] for one in await states(box)] == ["pending", "parked"]
    assert await end_all(box, "done") == ["evt_0", "evt_1"]
    await books_are_right(box)


async def test_an_earlier_event_does_not_wait_behind_a_dead_one(box: SQLiteStore) -> None:
    await box.accept([arrival(f"evt_{n}", type="a:1") for n in range(3)])
    [first] = await box.claim("handler", 5, NOW)
    await box.settle(ended(first))
    assert await end_all(box, "dead") == ["evt_1"]
    await run_again(box, Choice(seqs=(1,)))
    assert [one[2] for one in await states(box)] == ["pending", "dead", "parked"]
    await books_are_right(box)


@pytest.mark.parametrize("skips", ["never", "always", "changing"])
@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_run_again_at_most_one_of_a_key_is_in_flight_and_all_end(
    box: SQLiteStore, seed: int, skips: str
) -> None:
    choose = random.Random(seed)
    running: list[Claimed] = []
    await box.accept([arrival("first")])
    for number in range(60):
        if skips == "always" or (skips == "changing" and choose.random() < 0.2):
            await skip_dead(box, {"handler"} if skips == "always" else set(choose.choices(["handler", "other"])))
        what = choose.random()
        if what < 0.3:
            await box.accept([arrival(f"evt_{number}", type=choose.choice(["a:1", "a:2", "b"]))])
        elif what < 0.55:
            running += await box.claim("handler", choose.randint(1, 3), NOW + 5)
        elif what < 0.8 and running:
            claimed = running.pop(choose.randrange(len(running)))
            await box.settle(ended(claimed, choose.choice(["done", "done", "dead"])))
        else:
            await run_again(box, choose.choice([Choice(state="dead"), Choice(state="done"), Choice(source="demo")]))
        await books_are_right(box)
        await at_most_one_is_in_flight(box)
    for claimed in running:
        await box.settle(ended(claimed))
    for _ in range(50):
        await end_all(box, "done")
        await run_again(box, Choice(state="dead"))
    assert {one[2] for one in await states(box)} <= {"done"}
    assert await box.read(open_reruns) == []
    assert await rows(box, "select count(*) from reruns where state <> 'done'") == [(0,)]
    await books_are_right(box)


async def skip_dead(store: SQLiteStore, targets: set[str]) -> None:
    """From now on the order of these targets goes on past what is dead, as after a change of the configuration."""
    store.routing.skipping = frozenset(targets)
    await store.change(lambda db, books: pass_dead(db, store.routing.skipping, NOW + 2, books))


async def at_most_one_is_in_flight(store: SQLiteStore) -> None:
    flying = (
        "select order_key, count(*) from v_deliveries where order_key is not null "
        "and state in ('pending', 'running') group by 1 having count(*) > 1"
    )
    assert await rows(store, flying) == []


async def test_where_order_skips_the_dead_one_that_is_run_again_waits_for_what_is_in_flight(box: SQLiteStore) -> None:
    box.routing.skipping = frozenset({"handler"})
    await box.accept([arrival(f"evt_{n}", type="a:1") for n in range(3)])
    [first] = await box.claim("handler", 5, NOW)
    await box.settle(ended(first, "dead"))
    assert [one[2] for one in await states(box)] == ["dead", "pending", "parked"]
    step_by_step = await order(box, Choice(state="dead"))
    one = await rerun(box, step_by_step)
    found = await look(box, one.choice, one.position, one.upto)
    await box.change(lambda db, books: feed(db, one, found, NOW + 1, books, box.routing.skipping))
    assert [one[2] for one in await states(box)] == ["parked", "pending", "parked"]
    assert await end_all(box, "done") == ["evt_1", "evt_0", "evt_2"]
    await books_are_right(box)


# Position, cancel, restart


async def test_each_step_moves_the_position_and_nothing_is_queued_twice(box: SQLiteStore) -> None:
    await box.accept([arrival(f"evt_{n}") for n in range(10)])
    await end_all(box, "done")
    id = await order(box, Choice(source="demo"))
    queued = []
    while (await rerun(box, id)).fed is False:
        await step(box, id, limit=4)
        queued.append((await rerun(box, id)).queued)
        await end_all(box, "done")
    assert queued == [4, 8, 10]
    assert {one[3] for one in await states(box)} == {2}
    assert (await rerun(box, id)).state == "done"


async def test_a_piece_found_for_an_old_position_is_not_used(box: SQLiteStore) -> None:
    await box.accept([arrival(f"evt_{n}") for n in range(10)])
    await end_all(box, "done")
    id = await order(box, Choice(source="demo"))
    one = await rerun(box, id)
    found = await look(box, one.choice, one.position, one.upto, 4)
    assert await box.change(lambda db, books: feed(db, one, found, NOW + 1, books)) == {"handler"}
    await end_all(box, "done")
    assert await box.change(lambda db, books: feed(db, one, found, NOW + 1, books)) == set()
    assert [run for *_, run, _, _ in await states(box)] == [2] * 4 + [1] * 6


async def test_events_that_come_after_the_order_are_not_part_of_it(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1")])
    await end_all(box, "done")
    id = await order(box, Choice(source="demo"))
    await box.accept([arrival("evt_2")])
    await end_all(box, "done")
    await step(box, id)
    assert (await rerun(box, id)).queued == 1


async def test_a_cancelled_rerun_queues_nothing_more_and_ends_what_it_has_queued(box: SQLiteStore) -> None:
    await box.accept([arrival(f"evt_{n}") for n in range(10)])
    await end_all(box, "done")
    id = await order(box, Choice(source="demo"))
    await step(box, id, limit=4)
    one = await rerun(box, id)
    found = await look(box, one.choice, one.position, one.upto, 4)
    assert await box.change(lambda db, _: cancel(db, id, NOW + 3))
    assert not await box.change(lambda db, _: cancel(db, id, NOW + 3))
    assert await box.change(lambda db, books: feed(db, one, found, NOW + 1, books)) == set()
    assert len(await end_all(box, "done")) == 4
    one = await rerun(box, id)
    assert (one.state, one.queued, one.done) == ("cancelled", 4, 4)
    await books_are_right(box)


async def test_a_rerun_goes_on_where_it_was_when_the_file_is_opened_again(database: Path) -> None:
    async with open_store(database, router=by_type) as store:
        await store.accept([arrival(f"evt_{n}") for n in range(10)])
        await end_all(store, "dead")
        id = await order(store, Choice(state="dead"))
        await step(store, id, limit=4)
        await store.claim("handler", 2, NOW + 3)
    async with open_store(database, router=by_type) as store:
        await store.recover([], NOW + 3)
        assert [one.id for one in await store.read(open_reruns)] == [id]
        while (await rerun(store, id)).fed is False:
            await step(store, id, limit=4)
        await end_all(store, "done")
        one = await rerun(store, id)
        assert (one.state, one.queued, one.done, one.dead) == ("done", 10, 10, 0)
        assert {one[3] for one in await states(store)} == {2}
        await books_are_right(store)


async def test_a_rerun_of_nothing_is_done_at_once(box: SQLiteStore) -> None:
    await box.accept([arrival("evt_1")])
    found = await run_again(box, Choice(state="dead"))
    assert (found.state, found.matched, found.queued) == ("done", 0, 0)


async def test_deliveries_of_reruns_are_counted_up_to_a_bound(box: SQLiteStore) -> None:
    await box.accept([arrival(f"evt_{n}", source=f"s{n % 3}") for n in range(9)])
    await end_all(box, "done")
    await run_again(box, Choice())
    assert await box.read(lambda db: waiting(db, "handler", NOW + 3, 100)) == 9
    assert await box.read(lambda db: waiting(db, "handler", NOW + 3, 5)) == 5
    assert await box.read(lambda db: waiting(db, "handler", NOW, 100)) == 0


# What a second run emits


def emitting(claimed: Claimed, db: Transaction) -> None:
    db.emit("mail", id=f"receipt-{claimed.event.id}", body=claimed.event.idempotency_key)


@pytest.mark.parametrize(("again", "ids"), [(False, ["receipt-evt_1"]), (True, ["receipt-evt_1", "receipt-evt_1~2"])])
async def test_a_rerun_emits_new_ids_only_when_asked_for_again(store: SQLiteStore, again: bool, ids: list[str]) -> None:
    store.routing.router = lambda one: (Planned("handler"),) if one.source == "demo" else ()
    await store.accept([arrival("evt_1")])
    await drain(store, Running(emitting))
    await run_again(store, Choice(source="demo"), again=again)
    await drain(store, Running(emitting))
    found = await rows(store, "select id, payload from raw_events where source = 'mail' order by 1")
    assert [one[0] for one in found] == ids
    if again:
        assert found[1][1] == found[0][1] + b":2"
    await books_are_right(store)


# Revival


async def repeat(store: SQLiteStore, id: str, at: int) -> None:
    await store.accept([arrival(id, at=at)])
    await flushed(store.care, store)


async def flushed(care: Care, store: SQLiteStore) -> None:
    woken = await store.writer.slice(care.flush)
    store.writer.tell(woken)


async def test_a_senders_repeat_revives_a_dead_event_once_in_ten_minutes(store: SQLiteStore) -> None:
    await store.accept([arrival("evt_1")])
    await end_all(store, "dead", error="down")
    await repeat(store, "evt_1", NOW + MINUTE)
    assert [one[2:] for one in await states(store)] == [("pending", 2, 0, 0)]
    [claimed] = await store.claim("handler", 1, NOW + 2 * MINUTE)
    await store.settle(ended(claimed, "dead"))
    await repeat(store, "evt_1", NOW + 10 * MINUTE)
    assert [one[2:4] for one in await states(store)] == [("dead", 2)]
    await repeat(store, "evt_1", NOW + 11 * MINUTE)
    assert [one[2:4] for one in await states(store)] == [("pending", 3)]
    assert await rows(store, "select replays from replays") == [(3,)]
    await books_are_right(store)


async def test_a_source_may_keep_what_is_dead(store: SQLiteStore) -> None:
    store.routing.keeps_dead = frozenset({"demo"})
    await store.accept([arrival("evt_1")])
    await end_all(store, "dead")
    await repeat(store, "evt_1", NOW + MINUTE)
    assert [one[2] for one in await states(store)] == ["dead"]


async def test_what_is_done_is_never_revived(store: SQLiteStore) -> None:
    await store.accept([arrival("evt_1")])
    await end_all(store, "done")
    await repeat(store, "evt_1", NOW + MINUTE)
    assert [one[2:4] for one in await states(store)] == [("done", 1)]


async def test_a_repeat_that_came_before_it_died_does_not_revive(store: SQLiteStore) -> None:
    await store.accept([arrival("evt_1")])
    [claimed] = await store.claim("handler", 1, NOW)
    await store.accept([arrival("evt_1", at=NOW - 1)])
    await store.settle(ended(claimed, "dead"))
    await flushed(store.care, store)
    assert [one[2] for one in await states(store)] == ["dead"]


async def test_what_ended_the_process_is_not_revived(store: SQLiteStore) -> None:
    await store.accept([arrival("evt_1")])
    await end_all(store, "dead", outcome="crashed", error="poison")
    await repeat(store, "evt_1", NOW + MINUTE)
    assert [one[2] for one in await states(store)] == ["dead"]


async def test_a_revived_delivery_does_not_count_for_the_rerun_before_it(store: SQLiteStore) -> None:
    await store.accept([arrival("evt_1")])
    await end_all(store, "dead")
    found = await run_again(store, Choice(state="dead"))
    await end_all(store, "dead")
    await repeat(store, "evt_1", NOW + MINUTE)
    [claimed] = await store.claim("handler", 1, NOW + 2 * MINUTE)
    await store.settle(ended(claimed))
    one = await rerun(store, found.id)
    assert (one.state, one.done, one.dead) == ("done", 0, 1)
