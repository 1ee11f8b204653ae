"""`oncebox backtest`: the past through today's handlers, without anything leaving the scratch file."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.conftest import Run, outside, parsed
from oncebox.cli.backtest import PREFIX, SCRATCH, backtest, interrupted_by
from oncebox.model import Planned
from oncebox.store.lock import Lock
from oncebox.store.sqlite import open_store
from operate.conftest import NOW, SECOND, arrival, ended

HANDLERS = """
from pathlib import Path
from oncebox import Retry, on, setup

@setup
def tables(db):
    db.execute("create table if not exists seen (n integer primary key, id text not null) strict")
    db.execute("create table if not exists rates (name text primary key, rate integer not null) strict, without rowid")

@on("demo")
def book(event, db):
    if event.type == "bad":
        raise ValueError(f"no column {event.seq}")
    if event.type == "rated":
        [(rate,)] = db.execute("select rate from rates where name = 'r1100'")
    if event.type == "late" and event.attempt == 1:
        raise Retry("not yet")
    db.execute("insert into seen (id) values (?)", (event.id,))
    if event.type == "chain":
        db.emit("mail", id=f"m-{event.id}", body={"in": "order"})

@on("mail")
def mail(event, db):
    raise LookupError("no address")

@on("demo", name="order")
def order(event, db):
    ids = [id for (id,) in db.execute("select id from seen order by n")]
    assert ids == sorted(ids), ids

@on("demo")
def outward(event):
    (Path(__file__).parent / "touched").write_text("by a blocking handler")
"""


async def write_history(database: Path) -> None:
    """Eight events, one of them dead at `book`, one unrouted; and a table of the handlers with 1,200 rows."""
    async with open_store(database, router=lambda a: () if a.type == "lost" else (Planned("book"),)) as store:
        await store.write(lambda db: db.execute("create table rates (name text primary key, rate integer) strict"), NOW)
        rows = [(f"r{n:04}", n) for n in range(1200)]
        await store.write(lambda db: db.executemany("insert into rates values (?, ?)", rows), NOW)
        kinds = ("plain", "bad", "bad", "chain", "rated", "late", "plain", "lost")
        await store.accept([arrival(f"e{n}", type=kind, body=b'{"n":%d}' % n) for n, kind in enumerate(kinds)])
        for claimed in await store.claim("book", 10, NOW + SECOND):
            dead = claimed.event.type == "rated"
            await store.settle(ended(claimed, "dead", error="x") if dead else ended(claimed))


@pytest.fixture
def history(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = folder / "litestar.toml"
    config.write_text(f'handlers = ["backtested"]\n{config.read_text()}')
    (folder / "backtested.py").write_text(HANDLERS)
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    anyio.run(write_history, folder / "inbox.db")
    return folder


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test has its own folder, so its own module of this name."""
    path = list(sys.path)
    yield
    sys.modules.pop("backtested", None)
    sys.path[:] = path


def content(folder: Path) -> list[Any]:
    """All that the file holds."""
    with closing(sqlite3.connect(folder / "inbox.db")) as db:
        return list(db.iterdump())


def groups(found: Any) -> dict[tuple[str, str], tuple[int, list[int]]]:
    return {(one["target"], one["error"]): (one["count"], one["seqs"]) for one in found["groups"]}


def test_what_fails_is_grouped_by_error_and_the_exit_code_says_so(history: Path, run: Run) -> None:
    found = parsed(run("backtest", "--json", "--tables", "rates", code=1))
    assert groups(found) == {
        ("book", "ValueError: no column 2"): (2, [2, 3]),
        ("mail", "LookupError: no address"): (1, [4]),
    }
    assert (found["events"], found["failed"], found["skipped"], found["not_run"]) == (8, 3, 0, ["outward"])
    assert found["done"] == 6 + 8


def test_nothing_of_it_leaves_the_scratch_file_and_that_is_deleted(history: Path, run: Run) -> None:
    before = content(history)
    run("backtest", "--json", code=1)
    assert content(history) == before
    assert not (history / "touched").exists()
    assert list((history / "tmp").iterdir()) == []


def test_what_one_that_was_killed_left_behind_is_removed_and_what_one_holds_is_not(
    history: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    long_ago = time.time() - 3600
    for name, held in (("killed", False), ("running", True), ("young", False), ("foreign", None)):
        folder = tmp_path / f"{PREFIX}{name}"
        folder.mkdir()
        (folder / SCRATCH).write_bytes(b"copies of events")
        if held is not None:
            lock = Lock(folder / SCRATCH)
            lock.acquire()
            if not held:
                lock.release()
        if name != "young":
            os.utime(folder, (long_ago, long_ago))
    run("backtest", "--to", "order")
    assert sorted(path.name for path in tmp_path.glob(f"{PREFIX}*")) == [
        f"{PREFIX}{name}" for name in ("foreign", "running", "young")
    ]


def test_reference_tables_are_copied_only_when_they_are_named(history: Path, run: Run) -> None:
    without = parsed(run("backtest", "--json", "--type", "rated", code=1))
    assert [one["target"] for one in without["groups"]] == ["book"]
    run("backtest", "--json", "--type", "rated", "--tables", "rates")
    assert "did you mean" in run("backtest", "--tables", "rate", code=1).output


@pytest.mark.parametrize(
    ("filters", "events"),
    [
        (("--type", "plain"), 2),
        (("--state", "unrouted"), 1),
        (("--source", "mail"), 0),
        (("--where", "/n=6"), 1),
        (("--until", "2020-01-01T00:00:00Z"), 0),
    ],
)
def test_filters_are_those_of_a_rerun(history: Path, run: Run, filters: tuple[str, ...], events: int) -> None:
    assert parsed(run("backtest", "--json", "--to", "book", *filters))["events"] == events


def test_a_state_means_the_deliveries_that_are_in_it(history: Path, run: Run) -> None:
    found = parsed(run("backtest", "--json", "--state", "dead", "--tables", "rates"))
    assert (found["events"], found["done"]) == (1, 1)


def test_what_cannot_be_run_without_effects_is_a_usage_error(history: Path, run: Run) -> None:
    assert "its effects would leave the file" in run("backtest", "--to", "outward", code=2).output
    assert "there are: book, mail, order" in run("backtest", "--to", "nobody", code=2).output
    assert "--since" in run("backtest", "--since", "yesterday", code=2).output


def test_the_story_is_told_in_a_table_and_a_sentence(history: Path, run: Run) -> None:
    told = run("backtest", "--to", "book", code=1).output
    assert "ValueError: no column 2" in told
    assert "8 events in" in told
    assert "not run, since their effects would leave the file: outward" in told


def test_it_works_beside_a_running_server(history: Path, server: str) -> None:
    done = outside(history, "backtest", "--json", "--tables", "rates", "--to", "book")
    assert (done.returncode, done.stderr) == (1, "")
    assert '"failed": 2' in done.stdout


def test_no_file_means_nothing_to_test(folder: Path, run: Run) -> None:
    (folder / "only.py").write_text("from oncebox import on\n@on('demo')\ndef f(event, db): ...\n")
    (folder / "litestar.toml").write_text('handlers = ["only"]\n' + (folder / "litestar.toml").read_text())
    try:
        assert "there is no such file yet" in run("backtest", code=1).output
    finally:
        sys.modules.pop("only", None)


def test_the_help_says_what_is_not_run() -> None:
    assert backtest.help is not None
    assert "URLs and commands are not run" in " ".join(backtest.help.split())


def test_what_runs_when_the_process_is_ended_is_cancelled_as_by_ctrl_c() -> None:
    """An exception from a signal's handler may come anywhere in the event loop, which ends in a page of traceback."""
    seen: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(10)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    with pytest.raises(KeyboardInterrupt), interrupted_by(signal.SIGTERM):
        anyio.run(work)
    assert seen == [asyncio.CancelledError.__name__]
