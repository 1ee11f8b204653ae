"""The file: opened by one process, with the right settings, and left clean."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from oncebox.errors import Locked, SchemaTooNew, StoreError, Unwritable
from oncebox.store.lock import read_lock
from oncebox.store.migrations import PAGE_SIZE, VERSION
from oncebox.store.sqlite import SQLiteStore, open_store
from store.conftest import Open, arrival, rows

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


async def test_the_log_does_not_grow_without_bound(store: SQLiteStore) -> None:
    for n in range(120):
        await store.accept([arrival(f"{n}-{m}", b"x" * 4000) for m in range(40)])
    assert store.care.wal_bytes() < 24 << 20


async def test_the_driver_runs_a_function_whole_although_the_wait_is_cancelled(store: SQLiteStore) -> None:
    """Fails when aiosqlite's private way of running a function moves."""
    for _ in range(50):
        task = asyncio.ensure_future(store.write(lambda db: db.execute("create table if not exists t (x)")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await store.write(lambda db: db.execute("insert into t values (1)"))
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
