"""What the writer does between jobs: it keeps what waits bounded, and the log short."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from oncebox.store import acts, care
from oncebox.store.accepts import Outcome
from oncebox.store.books import Books
from oncebox.store.care import Care
from oncebox.store.migrations import PAGE_SIZE, connect
from oncebox.store.minutes import forget_old
from oncebox.store.options import nothing
from oncebox.store.routing import Routing
from oncebox.store.sqlite import SQLiteStore
from oncebox.store.wal import CHECKPOINT_FRAMES, Wal
from store.conftest import NOW, Open, arrival, rows

pytestmark = pytest.mark.anyio


@contextmanager
def waiting(database: Path) -> Iterator[tuple[Care, sqlite3.Connection]]:
    with closing(connect(database)) as db:
        db.execute(
            "insert into events (source, id, seq, received_at, size, body_hash, verified) "
            "values ('demo', 'x', 1, 0, 0, x'', 'hmac')"
        )
        yield Care(database, Books(2), Routing(), checkpoint=30.0, least=nothing), db


def conflicting(*bodies: bytes, seq: int = 1) -> Outcome:
    return Outcome([], [(seq, NOW, 1) for _ in bodies], [(seq, arrival("x", body)) for body in bodies], set())


def test_bodies_that_wait_to_be_kept_aside_are_bounded_in_bytes(database: Path) -> None:
    with waiting(database) as (kept, db):
        half = care.WAITING_BYTES // 2
        for n in range(5):
            kept.noticed(conflicting(b"%d" % n * half))
        kept.noticed(conflicting(b""))
        kept.flush(db)
        sizes = [size for (size,) in db.execute("select length(body) from variants order by 1")]
        assert sizes == [0, half, half]
        assert db.execute("select replays, conflicts from replays").fetchall() == [(6, 6)]
        kept.noticed(conflicting(b"after", seq=1))
        kept.flush(db)


def test_what_could_not_be_written_still_counts_against_the_bound(database: Path) -> None:
    with waiting(database) as (kept, db), closing(sqlite3.connect(database, isolation_level=None)) as other:
        kept.noticed(conflicting(b"x" * care.WAITING_BYTES))
        other.execute("begin immediate")
        with pytest.raises(sqlite3.OperationalError):
            kept.flush(db)
        kept.noticed(conflicting(b"more"))
        other.execute("rollback")
        kept.flush(db)
        assert db.execute("select length(body) from variants").fetchall() == [(care.WAITING_BYTES,)]


def test_at_most_three_other_bodies_of_an_event_are_kept(database: Path) -> None:
    with waiting(database) as (kept, db):
        for n in range(4):
            kept.noticed(conflicting(b"a%d" % n, b"b%d" % n))
            kept.flush(db)
        kept.noticed(conflicting(*(b"c%d" % n for n in range(9))))
        kept.flush(db)
        assert [body for (body,) in db.execute("select body from variants order by 1")] == [b"a0", b"a1", b"b0"]


def test_repeats_that_wait_to_be_counted_are_bounded(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(care, "WAITING_TALLIES", 1)
    with waiting(database) as (kept, db):
        kept.noticed(Outcome([], [(1, NOW, 0), (2, NOW, 0), (1, NOW, 0)], [], set()))
        kept.flush(db)
        assert db.execute("select seq, replays from replays").fetchall() == [(1, 2)]


def test_repeats_without_end_do_not_put_off_the_cutting_of_the_log(database: Path) -> None:
    with waiting(database) as (_, db):
        kept = Care(database, Books(2), Routing(), checkpoint=0.0, least=nothing)
        kept.noticed(conflicting(b"other"))
        step = kept.step()
        assert step is not None
        step(db)
        assert kept.wal_bytes() == 0


async def written(store: SQLiteStore, name: str, megabytes: int) -> None:
    for n in range(megabytes):
        await store.accept([arrival(f"{name}-{n}", b"x" * (1 << 20))])


async def test_a_log_that_a_reader_holds_is_reported_and_the_report_ends_with_the_reader(
    store: SQLiteStore, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.care.wal = Wal(database, store.books, most=16 << 20)
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from events").fetchall()
        with caplog.at_level(logging.WARNING, "oncebox.store"):
            await written(store, "held", 28)
        assert "somebody has been reading the file for long" in store.care.wal.held
        assert len(caplog.records) == 1
    await written(store, "free", 8)
    assert store.care.wal.held == ""


async def test_how_long_the_log_may_get_is_an_option_of_the_file(
    open_any: Open, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_any(wal_max=1 << 20) as store:
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, isolation_level=None)) as reader:
            reader.execute("begin")
            reader.execute("select count(*) from events").fetchall()
            await written(store, "held", 6)
        assert "store.wal_max (1 MiB)" in caplog.text


async def test_a_log_that_nobody_holds_is_not_reported(
    store: SQLiteStore, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.care.wal = Wal(database, store.books, most=1 << 20)
    await written(store, "free", 12)
    assert store.care.wal.held == ""
    assert caplog.records == []


def commits(db: sqlite3.Connection, books: Books, log: Wal, count: int) -> int:
    """Commits of about ten pages each; how often the log was copied back."""
    copied = 0
    for _ in range(count):
        db.execute("insert into t values (zeroblob(?))", (9 * PAGE_SIZE,))
        books.settled()
        if log.wants_checkpoint():
            log.checkpoint(db)
            copied += 1
    return copied


def test_a_reader_that_holds_the_log_does_not_make_every_commit_copy_it_back(database: Path) -> None:
    with closing(connect(database)) as db, closing(sqlite3.connect(database, isolation_level=None)) as reader:
        db.execute("create table t (x)")
        books, count = Books(1), 10 * CHECKPOINT_FRAMES // 10
        log = Wal(database, books)
        before = commits(db, books, log, count)
        reader.execute("begin")
        reader.execute("select count(*) from t").fetchall()
        held = commits(db, books, log, count)
        assert 5 <= before <= 15
        assert held <= 1.5 * before


async def test_the_log_does_not_grow_when_commits_become_large(store: SQLiteStore) -> None:
    for n in range(300):
        await store.accept([arrival(f"small-{n}")])
    await written(store, "large", 40)
    assert store.care.wal_bytes() < 20 << 20


def test_the_log_is_short_again_when_a_reader_has_gone(database: Path) -> None:
    with closing(connect(database)) as db:
        db.execute("create table t (x)")
        log = Wal(database, Books(1), most=1)
        with closing(sqlite3.connect(database, isolation_level=None)) as reader:
            reader.execute("begin")
            reader.execute("select count(*) from t").fetchall()
            db.execute("insert into t values (1)")
            log.truncate(db)
            assert "store.wal_max" in log.held
        log.truncate(db)
        assert (log.held, log.bytes()) == ("", 0)


async def test_variants_and_counts_survive_a_stop(open_any: Open) -> None:
    async with open_any() as store:
        await store.accept([arrival("x", b"first")])
        await store.accept([arrival("x", b"second")])
    async with open_any() as store:
        assert await rows(store, "select body from variants") == [(b"second",)]


def test_of_the_counts_by_the_minute_the_newest_are_kept_and_the_whole_ones_always(database: Path) -> None:
    with closing(connect(database)) as db:
        minutes = [("demo", "received", minute, 1) for minute in range(1, 1301)]
        db.executemany("insert into totals values (?, ?, ?, ?)", [("demo", "received", 0, 1300), *minutes])
        assert [forget_old(db, kept=100) for _ in range(4)] == [True, True, False, False]
        assert db.execute("select min(minute), count(*) from totals where minute > 0").fetchone() == (1201, 100)
        assert db.execute("select n from totals where minute = 0").fetchone() == (1300,)


def test_of_the_acts_the_newest_are_kept(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acts, "MOST", 100)
    with closing(connect(database)) as db:
        db.execute("begin")
        for n in range(acts.EVERY):
            acts.act(db, "ops", "tried", str(n), NOW)
        db.execute("commit")
        assert db.execute("select count(*), max(detail + 0) from acts").fetchone() == (100, acts.EVERY - 1)
