"""Handler SQL that reaches for what is not its own harms nobody else."""

from __future__ import annotations

import sqlite3
import time

import pytest

from oncebox.model import Claimed
from oncebox.store import Transaction
from oncebox.store.guard import RESERVED, TABLES
from oncebox.store.sqlite import SQLiteStore
from oncebox.store.statement import MARK, RELEASE, SAVEPOINT
from store.conftest import Open, Running, arrival, books_are_right, drain, rows

pytestmark = pytest.mark.anyio

FORBIDDEN = [
    "commit",
    "rollback",
    "begin",
    "savepoint x",
    "release handler",
    "rollback to handler",
    SAVEPOINT,
    RELEASE,
    f"select 1 {MARK}",
    "pragma synchronous = off",
    "pragma user_version",
    "vacuum",
    "vacuum into 'copy.db'",
    "attach 'other.db' as other",
    "analyze",
    "reindex",
    "create temp table events (id text)",
    "create table temp.t (id text)",
    "create view temp.v as select 1",
    "update sqlite_sequence set seq = 9223372036854775807 where name = 'refused'",
    "insert into sqlite_sequence values ('refused', 9)",
    "create temporary view payloads as select 1",
    "create table other (seq integer references events (seq))",
    "create trigger t after insert on deliveries begin select 1; end",
    "create index i on events (type)",
    "create view v as select * from deliveries; select * from v",
    "alter table events add column mine text",
    "drop view v_events",
    "select * from events",
    "select count(*) from deliveries",
    "select 1 where exists (select 1 from payloads)",
    "with x as (select seq from events) select * from x",
    "insert into totals values ('a', 'b', 0, 1)",
    "update deliveries set state = 'done'",
    "delete from EVENTS",
    "replace into meta values ('next_seq', 1)",
]


async def with_victims(store: SQLiteStore, count: int = 8) -> None:
    await store.write(lambda db: db.execute("create table if not exists payments (id text primary key) strict"))
    await store.accept([arrival(f"e{n}") for n in range(count)])


def attack(sql: str, *, on: str = "e3") -> Running:
    def handler(claimed: Claimed, db: Transaction) -> None:
        db.execute("insert into payments values (?)", (claimed.event.id,))
        if claimed.event.id == on:
            db.execute(sql)

    return Running(handler)


@pytest.mark.parametrize("sql", FORBIDDEN)
async def test_forbidden_sql_fails_its_own_attempt_and_no_other(store: SQLiteStore, sql: str) -> None:
    await with_victims(store)
    await drain(store, attack(sql))
    assert await rows(store, "select count(*) from payments where id <> 'e3'") == [(7,)]
    assert await rows(store, "select count(*) from payments where id = 'e3'") == [(0,)]
    [(id, error)] = await rows(
        store, "select e.id, d.error from v_deliveries d join v_events e using (seq) where d.state <> 'done'"
    )
    assert id == "e3"
    assert error
    await books_are_right(store)


@pytest.mark.parametrize(
    "sql", ["insert or rollback into payments values ('e1')", "update or rollback payments set id = 'e1'"]
)
async def test_sql_that_ends_the_transaction_harms_nobody_else(store: SQLiteStore, sql: str) -> None:
    await with_victims(store)
    await drain(store, attack(sql))
    assert await rows(store, "select count(*) from payments") == [(7,)]
    [(error,)] = await rows(store, "select error from v_deliveries where state <> 'done'")
    assert "ended the transaction" in error or "UNIQUE" in error
    assert (await store.accept([arrival("after")]))[0].seq > 0
    await books_are_right(store)


async def test_a_handler_that_swallows_the_broken_transaction_is_found_out(store: SQLiteStore) -> None:
    await with_victims(store)

    def handler(claimed: Claimed, db: Transaction) -> None:
        db.execute("insert into payments values (?)", (claimed.event.id,))
        if claimed.event.id == "e3":
            try:
                db.execute("insert or rollback into payments values ('e3')")
            except sqlite3.IntegrityError:
                return

    await drain(store, Running(handler))
    assert await rows(store, "select count(*) from payments") == [(7,)]
    [(error,)] = await rows(store, "select error from v_deliveries where state <> 'done'")
    assert "ended the transaction" in error


async def test_a_trigger_of_a_handlers_own_cannot_write_to_our_tables(store: SQLiteStore) -> None:
    await with_victims(store)
    await store.write(lambda db: db.execute("create trigger t after insert on payments begin delete from events; end"))
    await drain(store, attack("select 1"))
    assert await rows(store, "select count(*) from events") == [(8,)]
    assert await rows(store, "select count(*) from payments") == [(0,)]


async def test_running_sql_is_interrupted_when_it_takes_too_long(open_any: Open) -> None:
    async with open_any(sync_timeout=0.2) as store:
        await with_victims(store, 4)
        started = time.monotonic()
        endless = "with recursive n (x) as (select 1 union all select x + 1 from n) select max(x) from n"
        await drain(store, attack(endless, on="e1"))
        assert time.monotonic() - started < 3
        assert await rows(store, "select count(*) from payments") == [(3,)]
        [(error,)] = await rows(store, "select error from v_deliveries where state <> 'done'")
        assert "interrupted" in error


async def test_our_views_may_be_read_and_own_tables_used_freely(store: SQLiteStore) -> None:
    await with_victims(store, 1)
    seen: list[object] = []

    def handler(_: Claimed, db: Transaction) -> None:
        db.execute("create table if not exists mine (id text primary key, n integer) strict")
        db.execute("create index if not exists mine_n on mine (n)")
        seen.extend(db.execute("select id, state from v_events"))
        seen.extend(db.execute("select id from raw_events"))
        seen.extend(db.execute("insert into mine values ('a', 1) returning id"))
        assert db.executemany("insert into mine values (?, ?)", [("b", 2), ("c", 3)]) == 2

    await drain(store, Running(handler))
    assert seen == [("e0", "running"), ("e0",), ("a",)]


async def test_every_table_and_view_of_the_schema_is_reserved(store: SQLiteStore) -> None:
    names = {name for (name,) in await rows(store, "select name from sqlite_schema where type in ('table', 'view')")}
    assert {name for name in names if not name.startswith("sqlite_")} == RESERVED
    assert TABLES < RESERVED
