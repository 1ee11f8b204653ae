"""The file: opened by one process, with the right settings, and left clean."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from oncebox.errors import Locked, Overloaded, SchemaTooNew, StorageFull, StoreError, Unwritable
from oncebox.store import writer
from oncebox.store.faults import explained
from oncebox.store.lock import read_lock
from oncebox.store.migrations import PAGE_SIZE, VERSION
from oncebox.store.offline import open_offline
from oncebox.store.sqlite import SQLiteStore, open_store
from store.conftest import NOW, Open, arrival, rows

pytestmark = pytest.mark.anyio


async def refused(path: Path, error: type[StoreError], match: str) -> None:
    with pytest.raises(error, match=match):
        async with open_store(path):
            pass


async def test_what_cannot_change_later_is_decided_when_the_file_is_made(store: SQLiteStore) -> None:
    settings = {
        name: (await rows(store, f"pragma {name}"))[0][0] for name in ("page_size", "auto_vacuum", "journal_mode")
    }
    assert settings == {"page_size": PAGE_SIZE, "auto_vacuum": 2, "journal_mode": "wal"}
    tables = await rows(
        store, "select name, strict from pragma_table_list where type = 'table' and name not like 'sqlite_%'"
    )
    assert [name for name, strict in tables if not strict] == []


async def test_a_second_opening_is_refused_also_through_a_symbolic_link(open_any: Open, database: Path) -> None:
    async with open_any():
        await refused(database, Locked, "another Oncebox .process .* has this file open")
        link = database.with_name("link.db")
        link.symlink_to(database)
        await refused(link, Locked, "another Oncebox")


async def test_a_second_name_for_the_file_is_refused(open_any: Open, database: Path) -> None:
    async with open_any():
        pass
    os.link(database, database.with_name("hard.db"))
    await refused(database, StoreError, "2 hard links")


async def test_a_newer_file_is_refused_unless_it_says_that_it_may_be_used(open_any: Open, database: Path) -> None:
    async with open_any():
        pass
    alter(database, f"pragma user_version = {VERSION + 1}")
    async with open_any() as store:
        await store.accept([arrival()])
    alter(database, f"update meta set value = {VERSION + 1} where name = 'min_version'")
    await refused(database, SchemaTooNew, "written by a newer Oncebox")


async def test_a_database_of_something_else_is_left_alone(database: Path) -> None:
    alter(database, "create table theirs (x)")
    await refused(database, StoreError, "has a table 'theirs'")


async def test_a_file_that_is_no_database_is_refused(database: Path) -> None:
    await anyio.Path(database).write_bytes(b"hello" * 1000)
    await refused(database, StoreError, "is not an SQLite database")


async def test_a_file_of_another_program_that_numbers_its_schema_is_left_alone(database: Path) -> None:
    for sql in ("create table theirs (x)", "pragma user_version = 1"):
        alter(database, sql)
    await refused(database, StoreError, "is a database of something else")
    alter(database, "create table meta (name, value)")
    await refused(database, StoreError, "is a database of something else")
    with pytest.raises(StoreError, match="is a database of something else"), open_offline(database):
        pass


async def test_a_new_file_and_what_lies_beside_it_are_for_the_owners_eyes_only(open_any: Open, database: Path) -> None:
    before = os.umask(0o022)
    try:
        async with open_any() as store:
            await store.accept([arrival()])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("inbox.db", "inbox.db-wal", "inbox.db-shm", "inbox.db.lock"), 0o600)


async def test_a_file_that_is_there_keeps_the_mode_that_a_person_gave_it(open_any: Open, database: Path) -> None:
    async with open_any():
        pass
    await anyio.Path(database).chmod(0o640)
    async with open_any() as store:
        await store.accept([arrival()])
        wal = database.with_name("inbox.db-wal")
        assert [stat.S_IMODE(path.stat().st_mode) for path in (database, wal)] == [0o640, 0o640]


@pytest.mark.parametrize("beside", ["-wal", "-shm"])
async def test_a_file_beside_it_that_cannot_be_used_is_named(open_any: Open, database: Path, beside: str) -> None:
    async with open_any():
        pass
    await anyio.Path(f"{database}{beside}").mkdir()
    await refused(database, Unwritable, f"inbox.db{beside}: cannot be used; it belongs to inbox.db")


async def test_what_cannot_be_a_database_is_named_to_those_who_only_read(open_any: Open, tmp_path: Path) -> None:
    folder, junk = tmp_path / "folder", tmp_path / "junk.db"
    folder.mkdir()
    await anyio.Path(junk).write_bytes(b"hello" * 1000)
    for path, why in (
        (folder, "is not a file"),
        (tmp_path / "none.db", "there is no such file yet"),
        (junk, "it is not an SQLite database: change store.path, or restore a backup"),
    ):
        with pytest.raises(StoreError, match=why), open_offline(path):
            pass
    await anyio.Path(f"{folder}.lock").mkdir()
    assert read_lock(folder) is None
    await refused(folder, StoreError, "is not a file")


@pytest.mark.parametrize("emptied", [True, False])
async def test_a_log_without_its_database_is_kept_and_named(open_any: Open, database: Path, emptied: bool) -> None:
    log, aside = database.with_name(f"{database.name}-wal"), database.with_name("aside")
    async with open_any() as store:
        await store.accept([arrival("evt_1")])
        copies = {path: path.read_bytes() for path in (database, log)}
    aside.write_bytes(copies[database])
    log.write_bytes(copies[log])
    if emptied:
        os.truncate(database, 0)
    else:
        await anyio.Path(database).unlink()
    with pytest.raises(StoreError, match=r"-wal: holds events of a database that is missing or empty; put .* back"):
        async with open_any():
            pass
    assert log.read_bytes() == copies[log]
    aside.rename(database)
    async with open_any() as store:
        assert await rows(store, "select id from v_events") == [("evt_1",)]


async def test_a_damaged_file_is_said_to_be_that(open_any: Open, database: Path) -> None:
    async with open_any():
        pass
    os.truncate(database, 3 * PAGE_SIZE)
    await refused(database, StoreError, "it is damaged: put it aside and restore a backup")


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("SQLITE_FULL", "free some space"),
        ("SQLITE_IOERR", "look into the system's log"),
        ("SQLITE_CANTOPEN", "check that the folder is there"),
        ("SQLITE_READONLY", "check the permissions"),
        ("SQLITE_BUSY", "another program is writing to it"),
        ("SQLITE_CORRUPT", "restore a backup"),
        ("SQLITE_ERROR", "is it a file of Oncebox"),
    ],
)
def test_each_error_of_the_file_says_what_to_do(tmp_path: Path, name: str, todo: str) -> None:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorname = name
    told = str(explained(tmp_path / "x.db", error))
    assert told.startswith(f"{tmp_path}/x.db: cannot be used (it failed)")
    assert todo in told


@pytest.mark.parametrize("happens", ["deleted", "replaced", "folder"])
async def test_a_file_that_is_taken_away_while_it_is_open_takes_no_more_events(
    tmp_path: Path, happens: str, caplog: pytest.LogCaptureFixture
) -> None:
    database, aside = tmp_path / "folder" / "inbox.db", tmp_path / "folder" / "aside.db"
    database.parent.mkdir()
    async with open_store(database) as store:
        await store.accept([arrival()])
        assert store.care.shortage() == ""
        if happens == "folder":
            database.parent.rename(tmp_path / "elsewhere")
        elif happens == "replaced":
            database.rename(aside)
            database.touch()
        else:
            database.unlink()
        assert "was deleted, moved or replaced" in store.care.shortage()
        if happens != "replaced":
            return
        with anyio.fail_after(5):
            while not store.writer.short:  # noqa: ASYNC110  # the writer looks every second
                await asyncio.sleep(0.01)
        with pytest.raises(StorageFull, match="was deleted, moved or replaced"):
            await store.accept([arrival("late")])
        told = [record.getMessage() for record in caplog.records if "nothing is accepted" in record.getMessage()]
        assert len(told) == 1
        aside.rename(database)
        with anyio.fail_after(5):
            while store.writer.short:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.01)
        assert "events are accepted again" in caplog.text
        await store.accept([arrival("late")])


async def test_a_folder_that_is_missing_or_read_only_is_named(tmp_path: Path) -> None:
    await refused(tmp_path / "none" / "x.db", Unwritable, "there is no such folder")
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    await refused(folder / "x.db", Unwritable, "read-only|Permission denied")


async def test_a_closed_file_is_clean_and_has_no_log(open_any: Open, database: Path) -> None:
    async with open_any() as store:
        await store.accept([arrival()])
        assert await rows(store, "select value from meta where name = 'clean'") == [(0,)]
    assert not database.with_name("inbox.db-wal").exists()
    db = sqlite3.connect(database)
    assert db.execute("select value from meta where name = 'clean'").fetchone() == (1,)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()


async def test_the_lock_file_tells_the_address_only_while_it_is_held(open_any: Open, database: Path) -> None:
    assert read_lock(database) is None
    async with open_any() as store:
        store.lock.announce("http://127.0.0.1:8640", store.boot)
        info = read_lock(database)
        assert info is not None
        assert (info.held, info.address, info.boot) == (True, "http://127.0.0.1:8640", store.boot)
    info = read_lock(database)
    assert info is None or not info.held


async def test_a_start_waits_for_a_program_that_is_writing(open_any: Open, database: Path) -> None:
    async with open_any():
        pass
    other = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    timer = threading.Timer(0.3, other.rollback)
    timer.start()
    async with open_any() as store:
        await store.accept([arrival()])
        assert store._raw.execute("pragma busy_timeout").fetchone() == (50,)
    timer.join()
    other.close()


async def test_an_outside_writer_is_waited_for(store: SQLiteStore, database: Path) -> None:
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("begin immediate")
    waiting = asyncio.ensure_future(store.accept([arrival()]))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    other.execute("rollback")
    other.close()
    [answer] = await waiting
    assert not answer.replayed


async def test_an_outside_writer_that_does_not_let_go_is_named_in_the_log_once(
    store: SQLiteStore, database: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_PATIENCE", 0.1)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("begin immediate")
        for n in range(2):
            with pytest.raises(Overloaded, match="another program holds the file"):
                await store.accept([arrival(f"{n}")])
    assert [record.getMessage() for record in caplog.records] == [
        "another program has held the file for 0.1 s: requests=1 were told to come back"
    ]
    await store.accept([arrival("0")])


async def test_a_drain_that_waits_for_an_outside_writer_says_so(
    store: SQLiteStore, database: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_PATIENCE", 0.1)
    await store.accept([arrival()])
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("begin immediate")
        claiming = asyncio.ensure_future(store.claim("handler", 1, NOW))
        with anyio.fail_after(5):
            while not caplog.records:  # noqa: ASYNC110  # the writer tries again and again
                await asyncio.sleep(0.01)
    assert len(await claiming) == 1
    assert [record.getMessage() for record in caplog.records] == [
        "another program has held the file for 0.1 s: outcomes and claims wait"
    ]


async def test_the_log_does_not_grow_without_bound(store: SQLiteStore) -> None:
    for n in range(120):
        await store.accept([arrival(f"{n}-{m}", b"x" * 4000) for m in range(40)])
    assert store.care.wal_bytes() < 24 << 20


async def test_the_driver_runs_a_function_whole_although_the_wait_is_cancelled(store: SQLiteStore) -> None:
    """Fails when aiosqlite's private way of running a function moves."""
    for _ in range(50):
        task = asyncio.ensure_future(store.write(lambda db: db.execute("create table if not exists t (x)"), NOW))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await store.write(lambda db: db.execute("insert into t values (1)"), NOW)
    assert await rows(store, "select x from t") == [(1,)]


def test_a_process_that_is_killed_leaves_no_stale_lock(database: Path) -> None:
    script = (
        "import asyncio, os, signal, sys\nfrom pathlib import Path\n"
        "from oncebox.store.sqlite import open_store\n"
        "async def main():\n"
        "    async with open_store(Path(sys.argv[1])):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    app = str(Path(__file__).parents[2] / "app")
    killed = subprocess.run(
        [sys.executable, "-c", script, str(database)], env={**os.environ, "PYTHONPATH": app}, check=False
    )
    assert killed.returncode == -9

    async def again() -> bool:
        async with open_store(database) as store:
            return store.clean

    assert asyncio.run(again()) is False


def alter(database: Path, sql: str) -> None:
    db = sqlite3.connect(database)
    db.execute(sql)
    db.commit()
    db.close()
