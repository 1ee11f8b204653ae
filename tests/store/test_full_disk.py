"""What the disk refuses, a commit or a handler's own statement: nothing is done twice, nothing is lost, and nobody's
attempt is used up."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from oncebox.errors import StorageFull
from oncebox.model import Call, Claimed, Performed, Result, Settled, StagedWrites
from oncebox.store import Transaction
from oncebox.store.edge import told
from oncebox.store.sqlite import SQLiteStore
from store.conftest import NOW, Open, Running, arrival, books_are_right, drain, ended, rows

pytestmark = pytest.mark.anyio


@contextmanager
def full(database: Path) -> Iterator[None]:
    """No file may grow beyond what the log has now."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{database}-wal").stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def count(claimed: Claimed, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (claimed.event.id,))


@pytest.mark.parametrize("held", [False, True])
async def test_a_refused_commit_of_a_slice_doubles_no_effect(store: SQLiteStore, database: Path, held: bool) -> None:
    await store.write(lambda db: db.execute("create table effects (id text) strict"), NOW)
    await store.accept([arrival("e1")])
    if held:
        claimed = await store.claim("handler", 1, NOW + 1)
        await store.release(claimed, NOW + 1)
        await store.accept([arrival(f"more{n}") for n in range(200)])
        await store.process(["handler"], Running(count), lambda: NOW + 1)
    with full(database), pytest.raises(StorageFull):
        await drain(store, Running(count))
    await drain(store, Running(count))
    assert await rows(store, "select id, count(*) from effects group by 1 having count(*) <> 1") == []
    assert await rows(store, "select distinct state from deliveries") == [("done",)]
    await books_are_right(store)


LATER = NOW + 6_000_000


@contextmanager
def without_room(store: SQLiteStore) -> Iterator[None]:
    """The file may have no page more than it has."""
    (pages,) = store._raw.execute("pragma page_count").fetchone()
    store._raw.execute(f"pragma max_page_count = {pages}")
    try:
        yield
    finally:
        store._raw.execute("pragma max_page_count = 4294967294")


def grow(claimed: Claimed, db: Transaction) -> None:
    """Only the event `large` needs more room."""
    count(claimed, db)
    if claimed.event.id == "large":
        db.execute("insert into heaps values (zeroblob(100000))")


def grow_and_hide_it(claimed: Claimed, db: Transaction) -> None:
    with suppress(sqlite3.Error):
        grow(claimed, db)


async def with_effects(store: SQLiteStore, *ids: str) -> None:
    await store.write(lambda db: db.execute("create table effects (id text) strict"), NOW)
    await store.write(lambda db: db.execute("create table heaps (body blob) strict"), NOW)
    await store.accept([arrival(id) for id in ids])


@pytest.mark.parametrize("handler", [grow, grow_and_hide_it])
async def test_a_full_disk_uses_up_no_attempt_of_a_handler_and_holds_up_no_other(
    store: SQLiteStore, handler: object, caplog: pytest.LogCaptureFixture
) -> None:
    await with_effects(store, "before", "large", "after")
    running = Running(handler)  # type: ignore[arg-type]  # one of two functions
    with without_room(store):
        await drain(store, running)
        assert await rows(store, "select id from effects order by 1") == [("after",), ("before",)]
    assert await rows(store, "select state, attempts, failures, error, due from deliveries where seq = 2") == [
        ("pending", 0, 0, None, NOW + 1 + 5_000_000)
    ]
    assert await rows(store, "select * from attempts") == []
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["handler put off target=handler seq=2"]
    assert "free some space" in caplog.text
    await books_are_right(store)
    await store.process(["handler"], running, lambda: LATER)
    assert await rows(store, "select state, attempts from deliveries where seq = 2") == [("done", 1)]
    assert await rows(store, "select count(*) from heaps") == [(1,)]


async def test_what_was_put_off_is_not_held_when_the_slice_fails_after_it(store: SQLiteStore) -> None:
    await with_effects(store, "first", "second")

    class Odd(Running):
        def failed(self, claimed: Claimed, outcome: str, why: str, started_at: int, duration: int) -> Settled:
            if self.seen.count("second") == 2:
                raise LookupError
            return super().failed(claimed, outcome, why, started_at, duration)

    def handler(claimed: Claimed, db: Transaction) -> None:
        """Together the second needs room; apart the first does, and the second fails and cannot be judged."""
        apart = running.seen.count("first") == 2
        if (claimed.event.id == "first") == apart:
            db.execute("insert into heaps values (zeroblob(100000))")
        elif apart:
            raise ValueError("a fault")

    running = Odd(handler)
    with without_room(store), pytest.raises(LookupError):
        await store.process(["handler"], running, lambda: NOW)
    again = Running(count)
    await drain(store, again)
    assert again.seen == ["second"]
    assert await rows(store, "select id from effects") == [("second",)]
    assert await rows(store, "select seq, state from deliveries") == [(1, "pending"), (2, "done")]


async def test_a_suspect_that_meets_a_full_disk_is_alone_again_later(store: SQLiteStore) -> None:
    await with_effects(store, "large")
    await store.claim("handler", 1, NOW)
    await store.change(lambda db, _: db.execute("update deliveries set state = 'pending', suspect = 1, attempts = 0"))
    suspect = await store.claim_suspect(["handler"], NOW)
    assert suspect is not None
    with without_room(store):
        done = await store.process_alone(suspect, Running(grow), lambda: NOW)
    assert done.settled == []
    assert await store.claim_suspect(["handler"], NOW) is None
    again = await store.claim_suspect(["handler"], LATER)
    assert again is not None
    assert again.attempt == 1


async def test_a_full_disk_fails_no_attempt_over_its_staged_writes(store: SQLiteStore) -> None:
    await with_effects(store, "e1")
    [claimed] = await store.claim("handler", 1, NOW)
    staged = StagedWrites((("insert into heaps values (zeroblob(?))", (100_000,)),))
    otherwise = ended(claimed, "pending")
    with without_room(store), pytest.raises(StorageFull, match="the disk is full: free some space"):
        await store.settle(ended(claimed), staged, otherwise)
    assert await rows(store, "select state from deliveries") == [("running",)]
    assert await store.settle(ended(claimed), staged, otherwise)
    assert await rows(store, "select state, length(body) from deliveries, heaps") == [("done", 100_000)]
    await books_are_right(store)


async def test_a_call_that_meets_a_full_disk_is_free_and_its_neighbours_are_performed(store: SQLiteStore) -> None:
    await with_effects(store)

    def perform(size: int, key: str) -> object:
        def work(db: Transaction, _attempt: int) -> tuple[Result, bool]:
            with suppress(sqlite3.Error):
                db.execute("insert into heaps values (zeroblob(?))", (size,))
            return Result(200, (), b""), True

        call = Call(caller="", key=key, operation="heap", fingerprint=b"f", at=NOW)
        return store.operations.perform(call, work)

    with without_room(store):
        first, large, last = perform(1, "first"), perform(100_000, "large"), perform(1, "last")
        with pytest.raises(StorageFull):
            await large  # type: ignore[misc]  # a future
        for one in (await first, await last):  # type: ignore[misc]  # as above
            assert isinstance(one, Performed)
            assert one.state == "done"
        await store.accept([arrival("while it is full")])
    assert (await perform(100_000, "large")).state == "done"  # type: ignore[misc]  # as above
    assert await rows(store, "select length(body) from heaps order by 1") == [(1,), (1,), (100_000,)]


async def test_a_function_that_hides_a_full_disk_keeps_nothing(store: SQLiteStore) -> None:
    await with_effects(store)

    def work(db: Transaction) -> None:
        db.execute("insert into effects values ('half')")
        with suppress(sqlite3.Error):
            db.execute("insert into heaps values (zeroblob(100000))")

    with without_room(store), pytest.raises(StorageFull):
        await store.write(work, NOW)
    assert await rows(store, "select * from effects") == []


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("SQLITE_FULL", "the disk is full: free some space"),
        ("SQLITE_IOERR_WRITE", "look into the system's log"),
        ("SQLITE_READONLY", "check the permissions"),
        ("SQLITE_CANTOPEN", "check that the folder is there"),
    ],
)
def test_a_sender_is_told_what_would_help(name: str, todo: str) -> None:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorname = name
    refused = told(error)
    assert isinstance(refused, StorageFull)
    assert str(refused).startswith("the file cannot be written (it failed); ")
    assert todo in str(refused)


async def test_a_refused_accept_says_what_would_help(
    store: SQLiteStore, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await store.accept([arrival("first")])
    with full(database), pytest.raises(StorageFull, match="fails: look into the system's log, then mend it"):
        await store.accept([arrival("large", b"x" * (1 << 20))])
    assert "look into the system's log" in store.writer.trouble
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def refusals(store: SQLiteStore, running: Running, count: int) -> None:
    """Slices, each when what was put off is due again."""
    for n in range(count):
        await store.process(["handler"], running, lambda n=n: NOW + n * 6_000_000)  # type: ignore[misc]
    await store.release_held(NOW)


async def attempts(store: SQLiteStore) -> list[tuple[object, ...]]:
    return await rows(store, "select e.id, d.state, d.failures from deliveries d join events e using (seq) order by 1")


@pytest.mark.parametrize("handler", [grow, grow_and_hide_it])
async def test_a_handler_that_alone_is_refused_again_and_again_fails_like_any_other(
    store: SQLiteStore, handler: object
) -> None:
    await with_effects(store, "before", "large", "after")
    running = Running(handler)  # type: ignore[arg-type]  # one of two functions
    with without_room(store):
        await refusals(store, running, 3)
        assert await attempts(store) == [("after", "done", 0), ("before", "done", 0), ("large", "pending", 0)]
        assert running.seen.count("large") > 1
        await refusals(store, running, 5)
        await store.accept([arrival("meanwhile")])
        await drain(store, running)
    assert await rows(store, "select id from effects order by 1") == [("after",), ("before",), ("meanwhile",)]
    [(state, outcome, error, number)] = await rows(
        store, "select d.state, a.outcome, a.detail, a.number from deliveries d join attempts a using (seq)"
    )
    assert (state, outcome, number) == ("pending", "error", 1)
    assert "database or disk is full" in error
    assert "takes what others write" in error
    await books_are_right(store)


async def test_on_a_disk_that_is_short_no_refusal_counts_however_often(open_any: Open) -> None:
    async with open_any(least=lambda disk: disk) as store:
        store.writer.short = ""
        await with_effects(store, "large")
        with without_room(store):
            await refusals(store, Running(grow), 8)
            assert await attempts(store) == [("large", "pending", 0)]
            assert await rows(store, "select * from attempts") == []


async def test_one_whose_commit_alone_is_refused_holds_up_no_other(store: SQLiteStore, database: Path) -> None:
    await with_effects(store, "large", "small")

    def handler(claimed: Claimed, db: Transaction) -> None:
        """Too much for the log, and too little to leave the cache before the commit."""
        count(claimed, db)
        if claimed.event.id == "large":
            db.execute("insert into heaps values (zeroblob(3000000))")

    running = Running(handler)
    await store.writer.slice(store.care.truncate)
    await store.write(lambda db: db.execute("insert into heaps values (zeroblob(2000000))"), NOW)
    await store.writer.slice(store.care.checkpoint)
    with full(database):
        await refusals(store, running, 2)
        assert await attempts(store) == [("large", "pending", 0), ("small", "done", 0)]
        await refusals(store, running, 5)
    assert await rows(store, "select id from effects") == [("small",)]
    assert await rows(store, "select outcome, number from attempts") == [("error", 1)]
    await books_are_right(store)


async def test_staged_writes_that_are_refused_again_and_again_fail_their_attempt(store: SQLiteStore) -> None:
    await with_effects(store, "e1")
    [claimed] = await store.claim("handler", 1, NOW)
    staged = StagedWrites((("insert into heaps values (zeroblob(?))", (100_000,)),))
    with without_room(store):
        for _ in range(2):
            with pytest.raises(StorageFull):
                await store.settle(ended(claimed), staged, ended(claimed, "pending"))
        assert await store.settle(ended(claimed), staged, ended(claimed, "pending"))
    [(state, error)] = await rows(store, "select d.state, a.detail from deliveries d join attempts a using (seq)")
    assert state == "pending"
    assert error.startswith("staged: what it writes was refused (database or disk is full)")
    await books_are_right(store)
