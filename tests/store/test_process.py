"""What a store promises of processing, for any store."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn

import msgspec
import pytest

from oncebox.errors import ForbiddenSQL, StoreError
from oncebox.model import Arrival, Claimed, Planned, Settled, StagedWrites
from oncebox.store import Transaction
from oncebox.store.books import Books
from oncebox.store.choice import Picked
from oncebox.store.reruns import HISTORY, put_back
from oncebox.store.settlement import Settlement, settle_some
from oncebox.store.sqlite import SQLiteStore
from store.conftest import NOW, Open, Running, arrival, books_are_right, drain, ended, rows

pytestmark = pytest.mark.anyio


def pay(claimed: Claimed, db: Transaction) -> None:
    db.execute("insert into payments values (?)", (claimed.event.id,))


async def with_payments(store: SQLiteStore, count: int = 0) -> None:
    await store.write(lambda db: db.execute("create table if not exists payments (id text primary key) strict"), NOW)
    for n in range(count):
        await store.accept([arrival(f"e{n}")])


async def test_a_handlers_writes_and_the_mark_commit_together(store: SQLiteStore) -> None:
    await with_payments(store, 200)
    settled = await drain(store, Running(pay))
    assert len(settled) == 200
    assert await rows(store, "select count(*) from payments") == [(200,)]
    assert await rows(store, "select distinct state, processed_at from v_events") == [("done", NOW + 1)]
    await books_are_right(store)


async def test_a_failing_handler_leaves_no_trace_but_its_attempt(store: SQLiteStore) -> None:
    await with_payments(store, 3)

    def handler(claimed: Claimed, db: Transaction) -> None:
        if claimed.event.source == "mail":
            return
        pay(claimed, db)
        db.emit("mail", id=claimed.event.id)
        if claimed.event.id == "e1":
            raise ValueError("no such invoice")

    await drain(store, Running(handler))
    assert await rows(store, "select id from payments order by 1") == [("e0",), ("e2",)]
    assert await rows(store, "select id from events where source = 'mail' order by 1") == [("e0",), ("e2",)]
    assert await rows(store, "select state, attempts, error from v_deliveries where state = 'pending' and seq < 4") == [
        ("pending", 1, "no such invoice")
    ]
    assert await rows(store, "select number, outcome, detail from attempts") == [(1, "error", "no such invoice")]
    await books_are_right(store)


async def test_an_attempt_is_on_disk_before_it_starts(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    [claimed] = await store.claim("handler", 4, NOW)
    assert await rows(store, "select state, attempts, boot from deliveries") == [("running", 1, store.boot)]
    assert await store.claim("handler", 4, NOW) == []
    assert await store.settle(ended(claimed))


async def test_a_late_result_changes_nothing(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    [first] = await store.claim("handler", 1, NOW)
    await store.settle(ended(first, "pending", due=NOW))
    [second] = await store.claim("handler", 1, NOW)
    assert not await store.settle(ended(first))
    assert await store.settle(ended(second))
    assert not await store.settle(ended(second, "dead"))
    assert await rows(store, "select state, attempts from deliveries") == [("done", 2)]
    await books_are_right(store)


async def test_what_is_not_due_is_not_claimed_and_its_time_is_known(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    [claimed] = await store.claim("handler", 1, NOW)
    await store.settle(ended(claimed, "pending", due=NOW + 60))
    assert await store.claim("handler", 1, NOW + 59) == []
    assert await store.next_due(["handler"]) == NOW + 60
    assert len(await store.claim("handler", 1, NOW + 60)) == 1
    assert await store.next_due(["handler"]) is None


async def test_sources_take_turns_so_that_a_noisy_one_delays_no_other(store: SQLiteStore) -> None:
    await store.accept([arrival(f"n{n}", source="noisy") for n in range(500)])
    await store.accept([arrival("q", source="quiet")])
    claimed = await store.claim("handler", 4, NOW)
    assert {c.event.source for c in claimed} == {"noisy", "quiet"}
    await store.accept([arrival("q2", source="quiet")])
    one, two = await store.claim("handler", 1, NOW), await store.claim("handler", 1, NOW)
    assert {one[0].event.source, two[0].event.source} == {"noisy", "quiet"}


class Portions(msgspec.Struct, frozen=True):
    """So many of each source, and of reruns; others get all they want."""

    of: dict[str, int]
    history: int = 1000

    def most(self, source: str, *, history: bool = False) -> int:
        return self.history if history else self.of.get(source, 1000)

    def took(self, source: str, count: int, *, history: bool = False) -> Portions:
        if history:
            return msgspec.structs.replace(self, history=self.history - count)
        return msgspec.structs.replace(self, of={**self.of, source: self.most(source) - count})


async def test_a_claim_takes_no_more_of_a_source_than_its_share(store: SQLiteStore) -> None:
    for source, count in (("a", 9), ("b", 9), ("c", 2)):
        await store.accept([arrival(f"{source}{n}", source=source) for n in range(count)])
    claimed = await store.claim("handler", 12, NOW, share=Portions({"a": 3, "b": 0}))
    assert sorted(one.event.id for one in claimed) == ["a0", "a1", "a2", "c0", "c1"]
    assert await store.claim("handler", 12, NOW, share=Portions({"a": 0, "b": 0})) == []
    rest = await store.claim("handler", 20, NOW)
    assert Counter(one.event.source for one in rest) == {"a": 6, "b": 9}


async def test_a_source_without_a_share_does_not_lessen_the_room_of_the_others(store: SQLiteStore) -> None:
    for source in ("a", "b"):
        await store.accept([arrival(f"{source}{n}", source=source) for n in range(9)])
    claimed = await store.claim("handler", 6, NOW, share=Portions({"b": 0}))
    assert [one.event.id for one in claimed] == [f"a{n}" for n in range(6)]


async def test_reruns_have_a_share_of_their_own_over_all_sources(store: SQLiteStore) -> None:
    for source in ("a", "b"):
        await store.accept([arrival(f"{source}{n}", source=source) for n in range(4)])
    for one in await store.claim("handler", 8, NOW):
        await store.settle(ended(one))
    await store.change(lambda db, books: [again(db, books, seq) for seq in range(1, 9)])
    await store.accept([arrival("live", source="a")])
    claimed = await store.claim("handler", 8, NOW, share=Portions({}, history=3))
    assert [one.history for one in claimed] == [False, True, True, True]
    assert claimed[0].event.id == "live"
    assert await store.claim("handler", 8, NOW, share=Portions({}, history=0)) == []
    assert len(await store.claim("handler", 8, NOW)) == 5


def again(db: sqlite3.Connection, books: Books, seq: int) -> bool:
    return put_back(db, Picked(seq, "handler", 1, None), None, HISTORY, NOW, books, frozenset())


async def test_sources_without_a_share_are_left_out_of_the_next_due_time(store: SQLiteStore) -> None:
    await store.accept([arrival("early", source="a", at=NOW + 1), arrival("late", source="b", at=NOW + 2)])
    assert await store.next_due(["handler"]) == NOW + 1
    assert await store.next_due(["handler"], Portions({"a": 0})) == NOW + 2
    assert await store.next_due(["handler"], Portions({"a": 0, "b": 0})) is None


async def test_per_order_key_one_starts_when_the_one_before_is_done(open_any: Open) -> None:
    def by_key(arrival: Arrival) -> list[Planned]:
        return [Planned("handler", arrival.id.split("-")[0])]

    async with open_any(router=by_key) as store:
        await store.accept([arrival(id) for id in ("a-1", "a-2", "b-1", "a-3")])
        first = await store.claim("handler", 9, NOW)
        assert [c.event.id for c in first] == ["a-1", "b-1"]
        await store.settle(ended(first[0]))
        [second] = await store.claim("handler", 9, NOW + 1)
        assert second.event.id == "a-2"
        await store.settle(ended(second, "dead"))
        assert await store.claim("handler", 9, NOW + 1) == []
        await books_are_right(store)


async def test_released_deliveries_are_pending_and_the_attempt_does_not_count(store: SQLiteStore) -> None:
    await with_payments(store, 2)
    claimed = await store.claim("handler", 2, NOW)
    await store.release(claimed, NOW)
    assert await rows(store, "select distinct state, attempts from deliveries") == [("pending", 0)]
    await books_are_right(store)


async def test_a_paused_target_starts_nothing_and_stays_paused_over_a_restart(open_any: Open) -> None:
    async with open_any() as store:
        await with_payments(store, 3)
        await store.pause("handler", "it hangs", NOW)
        assert await drain(store, Running(pay)) == []
        assert await store.claim("handler", 1, NOW) == []
    async with open_any() as store:
        assert await store.paused() == {"handler": "it hangs"}
        assert await store.resume("handler")
        assert not await store.resume("handler")
        assert len(await drain(store, Running(pay))) == 3


async def test_a_stop_gives_back_what_was_claimed_for_the_next_slice(open_any: Open) -> None:
    async with open_any() as store:
        await with_payments(store, 200)
        await store.process(["handler"], Running(pay), lambda: NOW)
        await store.release_held(NOW)
        assert await rows(store, "select count(*) from deliveries where state = 'running'") == [(0,)]
        await books_are_right(store)
        await drain(store, Running(pay))
        assert await rows(store, "select count(*) from payments") == [(200,)]


async def test_staged_writes_commit_with_the_mark_or_the_attempt_has_failed(store: SQLiteStore) -> None:
    await with_payments(store, 2)
    good, bad = await store.claim("handler", 2, NOW)
    insert = "insert into payments values (?)"
    assert await store.settle(ended(good), StagedWrites(((insert, ("x",)),)), ended(good, "pending"))
    assert await store.settle(
        ended(bad), StagedWrites(((insert, ("y",)), (insert, ("x",)))), ended(bad, "pending", due=NOW + 9)
    )
    assert await rows(store, "select id from payments") == [("x",)]
    [(state, error)] = await rows(store, "select state, error from deliveries where seq = ?", bad.event.seq)
    assert state == "pending"
    assert error.startswith("staged: UNIQUE constraint failed")
    await books_are_right(store)


async def test_an_emitted_event_has_its_parent_and_is_the_same_event_the_second_time(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    new: list[bool] = []

    def handler(claimed: Claimed, db: Transaction) -> None:
        if claimed.event.source == "demo":
            new.extend(db.emit("mail", id="receipt", body={"to": "a@b.example"}) for _ in range(2))

    await drain(store, Running(handler))
    assert new == [True, False]
    [(parent, body)] = await rows(
        store, "select e.parent, p.body from events e join payloads p using (seq) where e.source = 'mail'"
    )
    assert (parent, body) == (1, b'{"to":"a@b.example"}')


@pytest.mark.parametrize("source", ["demo", "mial", ""])
async def test_emitting_to_a_source_that_is_not_internal_is_an_error(store: SQLiteStore, source: str) -> None:
    await with_payments(store, 1)
    await drain(store, Running(lambda _, db: db.emit(source, id="x")))
    [(error,)] = await rows(store, "select error from deliveries")
    assert "cannot emit" in error or "source" in error
    if source == "mial":
        assert "did you mean mail?" in error


async def test_a_chain_of_emits_ends_at_twenty(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    await drain(store, Running(lambda c, db: db.emit("mail", id=f"{c.event.id}+")))
    assert await rows(store, "select count(*) from events") == [(20,)]
    [(error,)] = await rows(store, "select error from deliveries where state = 'pending'")
    assert "emit loop" in error


async def test_a_transaction_kept_beyond_its_handler_writes_nothing(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    kept: list[Transaction] = []
    await drain(store, Running(lambda _, db: kept.append(db)))
    with pytest.raises(ForbiddenSQL, match="has ended"):
        kept[0].execute("insert into payments values ('late')")


async def test_deaths_count_only_while_alone_and_the_third_convicts(open_any: Open) -> None:
    async with open_any() as store:
        await with_payments(store, 3)
        await store.claim("handler", 3, NOW)
    now = NOW
    for death in range(1, 4):
        async with open_any() as store:
            assert await store.recover(["handler"], now) == (3 if death == 1 else 1 if death < 3 else 0)
            await books_are_right(store)
            if death == 1:
                assert await store.claim("handler", 9, now) == []
                for _ in range(2):
                    innocent = await store.claim_suspect(["handler"], now)
                    assert innocent is not None
                    await store.settle(ended(innocent))
            if death < 3:
                now += 60_000_000
                assert await store.claim_suspect(["handler"], now) is not None
    async with open_any() as store:
        [(state, error)] = await rows(store, "select state, error from deliveries where state <> 'done'")
        assert state == "dead"
        assert error.startswith("poison")
        await books_are_right(store)


async def test_what_a_death_cut_off_is_told_as_it_is_known(open_any: Open) -> None:
    async with open_any(router=lambda _: (Planned("handler"), Planned("url"))) as store:
        await store.accept([arrival("x")])
        await store.claim("handler", 1, NOW)
        await store.claim("url", 1, NOW)
    async with open_any() as store:
        await store.recover(["handler"], NOW)
        told = dict(await rows(store, "select target, detail from attempts"))
    assert told["handler"].endswith("while this attempt was running")
    assert told["url"].endswith("it ran, or was about to")


async def test_a_fault_of_the_runners_own_fails_one_attempt_and_no_other(store: SQLiteStore) -> None:
    await with_payments(store, 8)

    class Faulty(Running):
        def run(self, claimed: Claimed, db: Transaction) -> Settled:
            settled = super().run(claimed, db)
            if claimed.event.id == "e3":
                raise LookupError("a fault")
            return settled

    settled = await drain(store, Faulty(pay))
    assert len(settled) == 8
    assert await rows(store, "select count(*) from payments") == [(7,)]
    [(id, error)] = await rows(
        store, "select e.id, d.error from deliveries d join events e using (seq) where d.state <> 'done'"
    )
    assert (id, error) == ("e3", "the outcome cannot be told: LookupError")
    await books_are_right(store)


async def test_a_death_of_other_targets_is_nobodys_fault(open_any: Open) -> None:
    async with open_any() as store:
        await with_payments(store, 1)
    for _ in range(5):
        async with open_any() as store:
            assert await store.recover([], NOW) == 0
            assert len(await store.claim("handler", 1, NOW)) == 1


async def test_a_suspect_of_what_is_no_handler_any_more_is_like_any_other(open_any: Open) -> None:
    async with open_any() as store:
        await with_payments(store, 2)
        await store.claim("handler", 2, NOW)
    async with open_any() as store:
        assert await store.recover(["handler"], NOW) == 2
        assert await store.claim("handler", 2, NOW) == []
    async with open_any() as store:
        assert await store.recover(["other"], NOW) == 0
        assert len(await store.claim("handler", 2, NOW)) == 2


async def test_after_a_death_alone_a_suspect_rests_before_it_is_tried_again(open_any: Open) -> None:
    async with open_any() as store:
        await with_payments(store, 1)
        await store.claim("handler", 1, NOW)
    async with open_any() as store:
        await store.recover(["handler"], NOW)
        assert await store.claim_suspect(["handler"], NOW) is not None
    async with open_any() as store:
        await store.recover(["handler"], NOW)
        assert await store.claim_suspect(["handler"], NOW) is None
        assert await store.next_due(["handler"]) == NOW + 5_000_000


async def test_ever_new_deaths_beside_it_acquit_a_suspect_only_so_often(open_any: Open) -> None:
    now = NOW
    async with open_any() as store:
        await store.accept([arrival("killer")])
        await store.claim("handler", 1, now)
    for round in range(6):
        async with open_any() as store:
            await store.recover(["handler"], now)
            now += 60_000_000
            if await store.claim_suspect(["handler"], now) is None:
                break
        async with open_any() as store:
            await store.recover(["handler"], now)
            await store.accept([arrival(f"another{round}", at=now)])
            [other] = await store.claim("handler", 1, now)
            assert other.event.id == f"another{round}"
        async with open_any() as store:
            await store.recover(["handler"], now)
            while (suspect := await store.claim_suspect(["handler"], now)) is not None:
                if suspect.event.id == "killer":
                    break
                await store.settle(ended(suspect))
    async with open_any() as store:
        [(state, error)] = await rows(store, "select state, error from deliveries where seq = 1")
        assert (state, error.split(":")[0]) == ("dead", "poison")


class Leaves(BaseException):
    """What a function raises that means to end the process."""


class Leaving:
    """A value that raises when SQLite asks for it."""

    def __conform__(self, _protocol: object) -> object:
        raise SystemExit(3)


def leave(*_: object) -> NoReturn:
    raise Leaves


class LeavingRunner(Running):
    """A runner that raises for a fault of its own."""

    def run(self, claimed: Claimed, db: Transaction) -> Settled:
        if claimed.event.id == "e1":
            raise Leaves
        return super().run(claimed, db)


async def test_a_function_that_means_to_end_the_process_ends_itself(store: SQLiteStore) -> None:
    with pytest.raises(StoreError, match="ended with Leaves; nothing of it was kept"):
        await store.write(leave, NOW)
    with pytest.raises(StoreError, match="ended with Leaves; nothing of it was kept"):
        await store.change(leave)
    await store.accept([arrival("the writer goes on")])


async def test_a_runner_that_means_to_end_the_process_fails_one_attempt_and_no_other(store: SQLiteStore) -> None:
    await with_payments(store, 3)
    await drain(store, LeavingRunner(pay))
    assert await rows(store, "select seq, state from deliveries") == [(1, "done"), (2, "pending"), (3, "done")]
    [claimed] = await store.claim("handler", 1, NOW + 60_000_000)
    done = await store.process_alone(claimed, LeavingRunner(pay), lambda: NOW)
    assert [settled.state for settled in done.settled] == ["pending"]
    await books_are_right(store)


async def test_what_a_judge_that_means_to_end_the_process_leaves_behind_is_run_again(store: SQLiteStore) -> None:
    await with_payments(store, 2)

    class Judge(LeavingRunner):
        def failed(self, *_: object) -> NoReturn:
            raise Leaves

    with pytest.raises(StoreError, match="ended with Leaves"):
        await drain(store, Judge(pay))
    await drain(store, Running(pay))
    assert await rows(store, "select seq, state, attempts from deliveries") == [(1, "done", 1), (2, "done", 1)]
    assert await rows(store, "select count(*) from payments") == [(2,)]
    await books_are_right(store)


async def test_an_order_key_that_means_to_end_the_process_refuses_its_own_request(open_any: Open) -> None:
    def router(arrival: Arrival) -> Sequence[Planned]:
        return leave() if arrival.id == "bad" else (Planned("handler"),)

    async with open_any(router=router) as store:
        good, bad = store.accept([arrival("good")]), store.accept([arrival("bad")])
        with pytest.raises(StoreError, match="cannot be stored"):
            await bad
        assert len(await good) == 1
        await books_are_right(store)


async def test_a_staged_value_that_means_to_end_the_process_fails_its_attempt(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    [claimed] = await store.claim("handler", 1, NOW)
    staged = StagedWrites((("insert into payments values (?)", (Leaving(),)),))
    assert await store.settle(ended(claimed), staged, ended(claimed, "dead"))
    assert await rows(store, "select state, error from deliveries") == [("dead", "staged: 3")]


async def test_why_staged_writes_failed_is_kept_in_short(store: SQLiteStore) -> None:
    await with_payments(store, 1)
    [claimed] = await store.claim("handler", 1, NOW)
    staged = StagedWrites((('insert into "' + "x" * 100_000 + '" values (1)', ()),))
    assert await store.settle(ended(claimed), staged, ended(claimed, "dead"))
    [(error,)] = await rows(store, "select error from deliveries")
    assert error.startswith("staged: no such table: xxx")
    assert len(error) < 2_000


@pytest.mark.parametrize("suspect", [False, True])
async def test_an_event_whose_body_is_gone_is_delivered_to_nobody(open_any: Open, suspect: bool) -> None:
    def ordered(_arrival: Arrival) -> Sequence[Planned]:
        return (Planned("handler", "key"),)

    async with open_any(router=ordered) as store:
        await store.accept([arrival("gone"), arrival("empty", b"")])
        await store.change(lambda db, _: db.execute("delete from payloads where seq = 1"))
        if suspect:
            await store.change(lambda db, _: db.execute("update deliveries set suspect = 1 where seq = 1"))
            assert await store.claim_suspect(["handler"], NOW) is None
        else:
            assert await store.claim("handler", 9, NOW) == []
        assert await rows(store, "select seq, state, attempts, substr(error, 1, 16) from deliveries") == [
            (1, "dead", 0, "the body is gone"),
            (2, "parked", 0, None),
        ]
        await store.change(
            lambda db, books: settle_some(db, Settlement("handler", NOW + 1, "dead", "by hand"), NOW, books)
        )
        await books_are_right(store)
        assert not await store.change(
            lambda db, books: put_back(db, Picked(1, "handler", 1, "key"), None, 0, NOW, books, frozenset())
        )


async def test_a_body_that_is_empty_is_delivered(store: SQLiteStore) -> None:
    await store.accept([arrival("empty", b"")])
    assert [claimed.event.body for claimed in await store.claim("handler", 1, NOW)] == [b""]
