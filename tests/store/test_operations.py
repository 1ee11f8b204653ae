"""What a store promises of operations, for any store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from oncebox.errors import Overloaded, StorageFull, StoreError
from oncebox.model import Arrival, Call, Claimed, Performed, Planned, Result, StagedWrites
from oncebox.store import DONE, FAILED, FREED, UNKNOWN, Ended, Transaction, performing
from oncebox.store.busy import Busy
from oncebox.store.callbook import Wanted, list_calls
from oncebox.store.edge import told
from oncebox.store.operations import find_call
from oncebox.store.sqlite import SQLiteStore, open_store
from store.conftest import NOW, Open, Running, arrival, books_are_right, rows

pytestmark = pytest.mark.anyio

OK = Result(201, (("content-type", "text/plain"), ("etag", '"1"')), b"made")


def call(key: str = "k1", request: str = "a", at: int = NOW, caller: str = "acme", expired: int = 0) -> Call:
    print_ = sha256(request.encode()).digest()
    return Call(caller=caller, key=key, operation="orders", fingerprint=print_, at=at, expired=expired)


def made(result: Result = OK, kept: bool = True) -> Callable[[Transaction, int], tuple[Result, bool]]:
    return lambda _db, _attempt: (result, kept)


async def states(store: SQLiteStore) -> list[tuple[Any, ...]]:
    return await rows(store, "select key, state, attempts from operations order by key")


async def test_a_call_is_performed_once_and_its_result_is_kept(store: SQLiteStore) -> None:
    operations = store.operations
    assert await operations.perform(call(), made()) == Performed("done", OK, 1)
    assert await operations.perform(call(), made(Result(500, (), b""))) == Performed("replayed", OK, 1)
    assert await operations.perform(call(request="b"), made()) == Performed("conflict")
    assert (await operations.perform(call(caller="other", request="b"), made())).state == "done"


async def test_twins_within_one_group_are_performed_once(store: SQLiteStore) -> None:
    count = 0

    def perform(db: Transaction, attempt: int) -> tuple[Result, bool]:
        nonlocal count
        count += 1
        return OK, True

    answers = await asyncio.gather(*(store.operations.perform(call(f"k{n % 7}"), perform) for n in range(70)))
    assert count == 7
    assert sorted(one.state for one in answers) == ["done"] * 7 + ["replayed"] * 63


async def test_what_is_not_kept_leaves_the_key_free(store: SQLiteStore) -> None:
    no = Result(503, (), b"no")
    assert await store.operations.perform(call(), made(no, kept=False)) == Performed("freed", no, 1)
    assert await states(store) == []
    assert (await store.operations.perform(call(request="b"), made())).state == "done"


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
async def test_a_fault_of_who_performs_holds_neither_the_key_nor_its_neighbours(
    store: SQLiteStore, error: BaseException
) -> None:
    def broken(db: Transaction, attempt: int) -> tuple[Result, bool]:
        db.emit("mail", id="lost")
        raise error

    futures = [store.operations.perform(call(f"k{n}"), broken if n == 3 else made()) for n in range(6)]
    answers = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(one).__name__ for one in answers] == [*["Performed"] * 3, "StoreError", *["Performed"] * 2]
    assert [key for key, *_ in await states(store)] == ["k0", "k1", "k2", "k4", "k5"]
    assert await rows(store, "select count(*) from events") == [(0,)]
    await books_are_right(store)


async def test_operations_share_a_commit_with_each_other_and_never_with_accepts(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performing, "SLICE", 60.0)  # a group that takes long is another matter, see below

    def emitting(db: Transaction, attempt: int) -> tuple[Result, bool]:
        db.emit("mail", id="a")
        return OK, True

    commits = store.books.commits
    await asyncio.gather(*(store.operations.perform(call(f"k{n}"), made()) for n in range(50)))
    assert store.books.commits == commits + 1
    await asyncio.gather(store.accept([arrival()]), store.operations.perform(call("e"), emitting))
    assert store.books.commits == commits + 3
    before = store.books.commits
    await asyncio.gather(*(store.operations.perform(call(f"k{n}"), made()) for n in range(50)))
    assert store.books.commits == before
    await books_are_right(store)


async def test_a_group_that_takes_long_is_committed_in_parts(store: SQLiteStore) -> None:
    import time

    def slow(db: Transaction, attempt: int) -> tuple[Result, bool]:
        until = time.perf_counter() + 0.004
        while time.perf_counter() < until:
            pass
        return OK, True

    commits = store.books.commits
    answers = await asyncio.gather(*(store.operations.perform(call(f"k{n}"), slow) for n in range(10)))
    assert {one.state for one in answers} == {"done"}
    assert store.books.commits - commits >= 5


async def test_the_queue_of_calls_is_bounded_in_number_and_in_bytes(open_any: Open) -> None:
    async with open_any(queue=3) as store:
        waiting = [store.operations.perform(call(f"k{n}"), made()) for n in range(3)]
        with pytest.raises(Overloaded):
            store.operations.perform(call("k3"), made())
        await asyncio.gather(*waiting)
        waiting = [store.operations.perform(call(f"b{n}"), made(), 30 << 20) for n in range(2)]
        with pytest.raises(Overloaded):
            store.operations.perform(call("b2"), made(), 30 << 20)
        await asyncio.gather(*waiting)
        assert (await store.operations.perform(call("b2"), made(), 100 << 20)).state == "done"


async def test_a_call_outside_is_on_disk_before_it_starts_and_ends_once(store: SQLiteStore) -> None:
    operations = store.operations
    assert await operations.begin(call()) == Performed("new")
    assert await operations.begin(call()) == Performed("running")
    assert await operations.perform(call(), made()) == Performed("running")
    assert await operations.begin(call(request="b")) == Performed("conflict")
    assert await operations.end(call(), 2, Ended(DONE, OK), NOW) is None
    assert await operations.end(call(), 1, Ended(DONE, OK), NOW) == Ended(DONE, OK)
    assert await operations.end(call(), 1, Ended(FREED), NOW) is None
    assert await operations.begin(call()) == Performed("replayed", OK, 1)


async def test_a_freed_key_is_new_and_a_failed_one_remembers_its_attempts(store: SQLiteStore) -> None:
    operations = store.operations
    await operations.begin(call())
    await operations.end(call(), 1, Ended(FREED), NOW)
    assert await operations.begin(call(request="b")) == Performed("new")
    await operations.end(call(request="b"), 1, Ended(FAILED, why="boom"), NOW)
    assert await operations.begin(call(request="b")) == Performed("new", attempt=2)
    await operations.end(call(request="b"), 2, Ended(FAILED), NOW)
    assert await operations.begin(call(request="c")) == Performed("new")


async def test_the_unknown_never_expires_and_is_freed_only_by_a_person(store: SQLiteStore) -> None:
    operations = store.operations
    await operations.begin(call())
    await operations.end(call(), 1, Ended(UNKNOWN, why="timeout"), NOW)
    assert (await operations.begin(call(expired=NOW * 2))).state == "unknown"
    assert await operations.expire(NOW * 2) == 0
    assert await operations.resolve("acme", "k1", None, "ada", NOW)
    assert (await operations.begin(call())).state == "new"
    assert not await operations.resolve("acme", "k1", None, "ada", NOW)


async def test_a_call_is_new_when_it_ended_before_what_has_expired(store: SQLiteStore) -> None:
    operations = store.operations
    await operations.perform(call(), made())
    assert (await operations.perform(call(expired=NOW), made())).state == "replayed"
    other = Result(200, (), b"other")
    later = call(request="b", at=NOW + 9, expired=NOW + 1)
    assert await operations.perform(later, made(other)) == Performed("done", other, 1)
    assert await operations.perform(call(request="b", expired=NOW + 9), made()) == Performed("replayed", other, 1)


async def test_another_boot_recovers_what_was_running(open_any: Open) -> None:
    async with open_any() as store:
        for key in ("safe", "other"):
            await store.operations.begin(call(key))
        await store.operations.perform(call("done"), made())
    async with open_any() as store:
        operations = store.operations
        assert await operations.recover(["no-such"], NOW) == (0, 2)
        assert await operations.recover(["orders"], NOW) == (0, 0)
        assert await states(store) == [("done", "done", 1), ("other", "unknown", 1), ("safe", "unknown", 1)]
        await operations.begin(call("again"))
        assert await operations.recover(["orders"], NOW) == (0, 0)
    async with open_any() as store:
        assert await store.operations.recover(["orders"], NOW) == (1, 0)
        assert await store.operations.begin(call("again", request="b")) == Performed("conflict")
        assert await store.operations.begin(call("again")) == Performed("new", attempt=2)


async def test_old_calls_are_removed_500_at_a_time(store: SQLiteStore) -> None:
    await asyncio.gather(*(store.operations.perform(call(f"k{n}", at=NOW + n), made()) for n in range(700)))
    await store.operations.begin(call("running"))
    assert [await store.operations.expire(NOW + 600) for _ in range(3)] == [500, 100, 0]
    assert await rows(store, "select min(finished_at), count(*) from operations where state = 'done'") == [
        (NOW + 600, 100)
    ]
    plan = await rows(store, "explain query plan select rowid from operations where finished_at < 7")
    assert "operations_ended" in plan[0][3]


async def test_large_replies_are_removed_a_few_at_a_time(store: SQLiteStore) -> None:
    large = Result(200, (), b"x" * (6 << 20))
    for n in range(5):
        await store.operations.perform(call(f"k{n}"), made(large))
    assert [await store.operations.expire(NOW + 1) for _ in range(4)] == [2, 2, 1, 0]


async def test_staged_writes_commit_with_the_end_or_not_at_all(store: SQLiteStore) -> None:
    operations = store.operations
    await store.write(lambda db: db.execute("create table t (x unique)"), NOW)
    good = StagedWrites((("insert into t values (?)", (1,)), arrival("m", source="mail")))
    await operations.begin(call())
    assert await operations.end(call(), 1, Ended(DONE, OK), NOW, good) == Ended(DONE, OK)
    await operations.begin(call("k2"))
    bad = StagedWrites((("insert into t values (2)", ()), ("insert into t values (1)", ())))
    written = await operations.end(call("k2"), 1, Ended(DONE, OK), NOW, bad, FAILED)
    assert written is not None
    assert (written.state, written.result, "UNIQUE" in written.why) == (FAILED, None, True)
    assert await rows(store, "select x from t") == [(1,)]
    assert await operations.end(call("k2"), 1, Ended(DONE, OK), NOW, good) is None
    await books_are_right(store)


async def test_calls_are_listed_newest_first_and_found_by_their_key(store: SQLiteStore) -> None:
    for n in range(5):
        await store.operations.perform(call(f"k{n}"), made())
    await store.operations.begin(call("u"))
    await store.operations.end(call("u"), 1, Ended(UNKNOWN, why="boom"), NOW)
    [one] = (await store.read(lambda db: list_calls(db, Wanted(limit=10, before=1 << 60, state="unknown")))).calls
    assert (one.key, one.error, one.finished_at) == ("u", "boom", None)
    page = await store.read(lambda db: list_calls(db, Wanted(limit=3, before=one.n)))
    assert [known.key for known in page.calls] == ["k4", "k3", "k2"]
    assert await store.read(lambda db: find_call(db, "acme", "k9")) is None
    found = await store.read(lambda db: find_call(db, "acme", "k1"))
    assert found is not None
    assert (found.operation, found.state, found.status, found.attempts) == ("orders", "done", 201, 1)


# The edge


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("SQLITE_BUSY", Overloaded),
        ("SQLITE_FULL", StorageFull),
        ("SQLITE_IOERR_WRITE", StorageFull),
        ("SQLITE_CONSTRAINT_UNIQUE", StoreError),
    ],
)
def test_errors_of_sqlite_are_told_as_ours_and_kept_as_the_cause(name: str, ours: type[Exception]) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    outcome = told(error)
    assert type(outcome) is ours
    assert outcome.__cause__ is error
    assert told(outcome) is outcome


async def test_no_error_of_sqlite_reaches_who_calls_the_store(store: SQLiteStore) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: store.write(lambda db: db.execute("no sql"), NOW),
        lambda: store.change(lambda db, _: db.execute("no sql")),
        lambda: store.read(lambda db: db.execute("no sql")),
        lambda: store.writer.submit(lambda db: db.execute("no sql")),
    ]
    for one in calls:
        with pytest.raises(StoreError, match="syntax error") as caught:
            await one()
        assert isinstance(caught.value.__cause__, sqlite3.Error)


async def test_a_function_that_ends_the_process_or_the_transaction_ends_neither(store: SQLiteStore) -> None:
    def leaving(db: Transaction) -> None:
        db.emit("mail", id="lost")
        raise SystemExit(3)

    def breaking(db: Transaction) -> None:
        db.emit("mail", id="lost")
        db.execute("create table u (x unique)")
        db.execute("insert into u values (1)")
        try:
            db.execute("insert or rollback into u values (1)")
        except sqlite3.IntegrityError:
            return

    for work in (leaving, breaking):
        with pytest.raises(StoreError):
            await store.write(work, NOW)
    await store.accept([arrival()])
    assert await rows(store, "select id from events") == [("evt_1",)]
    await books_are_right(store)


async def test_a_function_is_held_to_its_time(store: SQLiteStore) -> None:
    endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select count(*) from n"
    with pytest.raises(StoreError, match="interrupted"):
        await store.write(lambda db: db.execute(endless), NOW, within=0.1)
    await store.write(lambda db: db.execute("create table t (x)"), NOW, within=0.1)


async def test_what_a_function_emits_is_stamped_with_the_time_that_is_given(store: SQLiteStore) -> None:
    await store.write(lambda db: db.emit("mail", id="m"), NOW + 7)
    assert await rows(store, "select received_at from events") == [(NOW + 7,)]


# Who holds the writer


async def test_everything_of_others_that_runs_in_the_writer_can_be_seen_from_outside(store: SQLiteStore) -> None:
    seen: list[tuple[str, str] | None] = []

    def look(*_: object) -> None:
        seen.append(store.busy.longer_than(0))

    def perform(db: Transaction, attempt: int) -> tuple[Result, bool]:
        look()
        return OK, True

    def handler(claimed: object, db: Transaction) -> None:
        look()

    class Looking(str):
        __slots__ = ()

        def lstrip(self, chars: str | None = None, /) -> str:
            look()
            return super().lstrip(chars)

    await store.write(look, NOW)
    await store.operations.perform(call(), perform)
    await store.accept([arrival("e1"), arrival("e2")])
    await store.process(["handler"], Running(handler), lambda: NOW)
    await store.operations.begin(call("k2"))
    staged = StagedWrites(((Looking("select 1"), ()),))
    await store.operations.end(call("k2"), 1, Ended(DONE, OK), NOW, staged)
    assert [one and one[0] for one in seen] == ["function", "operation", "handler", "handler", "staged writes"]
    assert seen[1] == ("operation", "operation=orders")
    assert seen[2] == ("handler", "target=handler seq=1")
    assert store.busy.longer_than(0) is None


def test_who_is_quick_does_not_count_as_stuck() -> None:
    busy = Busy()
    busy.begin("handler", target="pay", seq=7)
    assert busy.longer_than(30) is None
    assert busy.longer_than(0) == ("handler", "target=pay seq=7")
    busy.end()
    assert busy.longer_than(0) is None


async def test_targets_of_what_was_committed_are_told_although_the_disk_then_fails(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second handler breaks the transaction, so each runs apart; the end of the second is refused."""
    woken: set[str] = set()

    def router(one: Arrival) -> list[Planned]:
        return [Planned("mailer" if one.source == "mail" else "handler")]

    def handler(claimed: Claimed, db: Transaction) -> None:
        if claimed.event.id == "e0":
            db.emit("mail", id="m")
        else:
            db.execute("create table u (x unique)")
            db.execute("insert into u values (1)")
            db.execute("insert or rollback into u values (1)")

    def refused(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise error

    async with open_store(database, router=router, internal=frozenset({"mail"}), woken=woken.update) as store:
        await store.accept([arrival("e0"), arrival("e1")])
        await asyncio.sleep(0)
        woken.clear()
        monkeypatch.setattr(store.slices, "_settle_apart", refused)
        with pytest.raises(StorageFull):
            await store.process(["handler"], Running(handler), lambda: NOW)
        assert await rows(store, "select id from events where source = 'mail'") == [("m",)]
        await asyncio.sleep(0)
        assert woken == {"mailer"}
