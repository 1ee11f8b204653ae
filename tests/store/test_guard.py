"""Handler SQL that reaches for what is not its own harms nobody else."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator

import anyio
import pytest

from oncebox.errors import ForbiddenSQL
from oncebox.model import Claimed, StagedWrites
from oncebox.store import Transaction
from oncebox.store.guard import RESERVED, TABLES, own_indexes
from oncebox.store.sqlite import SQLiteStore
from oncebox.store.statement import MARK, RELEASE, SAVEPOINT
from store.conftest import NOW, Open, Running, arrival, books_are_right, drain, ended, rows

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
    "with v_events as (select headers from payloads) select * from v_events",
    "with raw_events (b) as materialized (select body_hash from events) select b from raw_events",
    "delete from sqlite_sequence",
    "update sqlite_sequence set name = 'mine' where name = 'refused'",
    "create virtual table pages using dbstat",
    "create virtual table copied using fts3tokenize",
    "create virtual table found using fts5 (body, content='events', content_rowid='seq'); select * from found",
    "pragma page_size = 512",
    "pragma table_list",
    "select name from pragma_table_list",
    "select fts3_tokenizer('simple', x'00')",
    "reindex deliveries_due",
    "drop index deliveries_order",
]


async def with_victims(store: SQLiteStore, count: int = 8) -> None:
    await store.write(lambda db: db.execute("create table if not exists payments (id text primary key) strict"), NOW)
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
    sql = "create trigger t after insert on payments begin delete from events; end"
    await store.write(lambda db: db.execute(sql), NOW)
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


async def test_every_index_of_the_schema_is_known(store: SQLiteStore) -> None:
    names = {name for (name,) in await rows(store, "select name from sqlite_schema where type = 'index'")}
    assert names == own_indexes()


async def test_a_reference_to_our_tables_is_undone_even_if_its_refusal_is_swallowed(store: SQLiteStore) -> None:
    await with_victims(store, 1)

    def handler(_: Claimed, db: Transaction) -> None:
        db.execute("create table mine (id text)")
        for sql in (
            "create table bad (seq references events (seq))",
            "alter table mine add column e references events",
        ):
            with pytest.raises(ForbiddenSQL, match="belongs to the inbox"):
                db.execute(sql)

    [done] = await drain(store, Running(handler))
    assert done.state == "done"
    assert await rows(store, "select name from pragma_table_info('mine')") == [("id",)]
    assert await rows(store, "select name from sqlite_schema where name = 'bad'") == []
    await store.write(lambda db: db.execute("create table later (id text)"), NOW)


async def test_names_that_only_begin_like_ours_are_free(store: SQLiteStore) -> None:
    def tables(db: Transaction) -> None:
        db.execute("create table events_mine (id text primary key, n integer) strict")
        db.execute("create table mine (id text unique, n integer)")
        db.execute("create index events_by_n on mine (n)")
        db.execute("create unique index deliveries_id on mine (id)")
        db.execute("reindex events_by_n")
        db.execute("drop index events_by_n")
        db.execute("reindex events_mine")
        db.execute("drop table events_mine")

    await store.write(tables, NOW)
    assert await rows(store, "select name from sqlite_schema where tbl_name = 'mine' and name = 'deliveries_id'")


async def test_numbered_tables_of_a_handlers_own_can_be_made_renamed_and_dropped(store: SQLiteStore) -> None:
    def tables(db: Transaction) -> None:
        db.execute("create table mine (id integer primary key autoincrement, t text)")
        db.execute("insert into mine (t) values ('x')")
        db.execute("alter table mine rename to theirs")
        db.execute("insert into theirs (t) values ('y')")
        db.execute("drop table theirs")

    await store.write(tables, NOW)


async def test_a_generator_of_parameters_may_emit_and_query(store: SQLiteStore) -> None:
    await with_victims(store, 1)
    new: list[bool] = []

    def handler(claimed: Claimed, db: Transaction) -> None:
        if claimed.event.source == "mail":
            return

        def parameters() -> Iterator[tuple[str]]:
            for n in range(3):
                new.append(db.emit("mail", id=f"m{n}"))
                [(count,)] = db.execute("select count(*) from payments")
                with pytest.raises(ForbiddenSQL, match="the table events"):
                    db.execute("select id from events")
                yield (f"p{count}",)

        assert db.executemany("insert into payments values (?)", parameters()) == 3

    await drain(store, Running(handler))
    assert new == [True, True, True]
    assert await rows(store, "select id from payments order by 1") == [("p0",), ("p1",), ("p2",)]
    assert await rows(store, "select count(*) from events where source = 'mail'") == [(3,)]
    await books_are_right(store)


async def test_an_emit_that_cannot_be_written_is_not_counted(store: SQLiteStore) -> None:
    await with_victims(store, 1)

    def handler(claimed: Claimed, db: Transaction) -> None:
        if claimed.event.source != "mail":
            with pytest.raises(sqlite3.DataError):
                db.emit("mail", id="x", body=b"x" * 200_000)
            db.emit("mail", id="y")

    store._raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)

    await drain(store, Running(handler))
    assert await rows(store, "select id from events where source = 'mail'") == [("y",)]
    await books_are_right(store)


def search(db: Transaction) -> None:
    db.execute("create virtual table if not exists found using fts5 (id, body)")
    db.execute("create virtual table if not exists boxes using rtree (id, low, high)")


async def test_a_handler_may_keep_a_full_text_index(open_any: Open) -> None:
    def handler(claimed: Claimed, db: Transaction) -> None:
        db.execute("insert into found values (?, ?)", (claimed.event.id, claimed.event.text()))
        db.execute("insert into boxes values (?, 1, 2)", (claimed.event.seq,))
        if claimed.event.id == "e1":
            raise ValueError("no")

    for n in range(2):
        async with open_any() as store:
            await store.write(search, NOW)
            await store.accept([arrival(f"e{n}{m}", b'"hello world"') for m in range(50)])
            await store.accept([arrival("e1", b'"hello"')])
            await drain(store, Running(handler))
    async with open_any() as store:
        assert await rows(store, "select count(*), count(distinct id) from found where found match 'hello'") == [
            (100, 100)
        ]
        assert await rows(store, "select count(*) from boxes where low > 0") == [(100,)]
        await store.write(lambda db: db.execute("alter table found rename to search"), NOW)
        await store.write(lambda db: db.execute("drop table search"), NOW)


@pytest.mark.parametrize(
    "sql", ["delete from found_data", "drop table found_idx", "delete from found_config", "drop table found_content"]
)
async def test_a_broken_full_text_index_fails_those_who_use_it_and_no_other(store: SQLiteStore, sql: str) -> None:
    await with_victims(store)
    await store.write(search, NOW)

    def handler(claimed: Claimed, db: Transaction) -> None:
        db.execute("insert into payments values (?)", (claimed.event.id,))
        if claimed.event.id == "e3":
            db.execute(sql)
        if claimed.event.id in ("e3", "e5"):
            db.execute("insert into found values ('x', 'y')")

    await drain(store, Running(handler))
    others = await rows(store, "select count(*) from payments where id not in ('e3', 'e5')")
    assert others == [(6,)]
    await books_are_right(store)


async def test_a_query_without_end_or_measure_is_interrupted_while_its_rows_are_read(open_any: Open) -> None:
    async with open_any(sync_timeout=0.2) as store:
        await with_victims(store, 2)
        numbers = "with recursive n (x) as (select 1 union all select x + 1 from n) select x from n"
        started = time.monotonic()
        await drain(store, attack(numbers, on="e1"))
        assert time.monotonic() - started < 3
        [(error,)] = await rows(store, "select error from v_deliveries where state <> 'done'")
        assert "interrupted" in error


async def test_a_staged_statement_that_does_not_end_is_interrupted(open_any: Open) -> None:
    async with open_any(sync_timeout=0.2) as store:
        await with_victims(store, 1)
        [claimed] = await store.claim("handler", 1, NOW)
        endless = "with recursive n (x) as (select 1 union all select x + 1 from n) select max(x) from n"
        with anyio.fail_after(5):
            staged = StagedWrites((("insert into payments values ('x')", ()), (endless, ())))
            assert await store.settle(ended(claimed), staged, ended(claimed, "pending", due=NOW + 9))
        assert await rows(store, "select count(*) from payments") == [(0,)]
        [(state, error)] = await rows(store, "select state, error from deliveries")
        assert (state, error) == ("pending", "staged: interrupted")
        await books_are_right(store)
