"""Attacks: what handler SQL may try, each as one event between good ones in the same transaction."""

from __future__ import annotations

from process.rig import Client, Server, until

GOOD_BETWEEN = 3
ATTACKING = """
import importlib, pkgutil, threading, time
from oncebox import Event, Transaction, on, setup
import oncebox.store
from oncebox.store.statement import MARK

ONCE = {"attempts": 1}
KEPT = []

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (id text not null) strict")
    db.execute("create table if not exists only_once (id text unique on conflict rollback)")
    db.execute("create table if not exists armed (id text)")
    db.execute("create trigger if not exists arm before insert on armed begin select raise(rollback, 'gone'); end")
    db.execute("create table if not exists plain (id text primary key)")
    db.execute("insert or ignore into plain values ('taken'), ('other')")

@on("demo", type="good")
def good(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))

@on("demo", type="plug")
def plug(event: Event, db: Transaction) -> None:
    time.sleep(0.9)

@on("demo", type="sql", retry=ONCE)
def attack(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    for statement in event.text().split(";;"):
        db.execute(statement)

@on("demo", type="quiet-sql", retry=ONCE)
def attack_quietly(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    for statement in event.text().split(";;"):
        try:
            db.execute(statement)
        except Exception:
            pass
    db.execute("insert into effects values (?)", (event.id,))

@on("demo", type="own-text", retry=ONCE)
def attack_with_our_text(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    allowed = []
    for module in pkgutil.iter_modules(oncebox.store.__path__, "oncebox.store."):
        for name, text in vars(importlib.import_module(module.name)).items():
            if isinstance(text, str) and MARK in text and text != MARK:
                try:
                    db.execute(text, (None,) * text.count("?"))
                    allowed.append(name)
                except Exception:
                    pass
    raise RuntimeError(f"allowed: {allowed}")

@on("demo", type="exit", retry=ONCE)
def attack_by_exit(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "generator": GeneratorExit}[event.text()]

@on("demo", type="keep", retry=ONCE)
def attack_by_keeping(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    if KEPT:
        KEPT[0].execute("insert into effects values ('kept')")
    KEPT.append(db)
    raise ValueError("the first keeps, the second uses")

@on("demo", type="thread", retry=ONCE)
def attack_from_a_thread(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    errors = []
    def work():
        try:
            db.execute("insert into effects values ('from a thread')")
        except Exception as error:
            errors.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise errors[0]
"""
# Each must fail. Where there are two statements, the second meets what the first has done.
LOUD = (
    "commit",
    "COMMIT TRANSACTION",
    "end",
    "rollback",
    "/* */ rollback",
    "begin",
    "savepoint mine",
    "release handler",
    "rollback to handler",
    "insert or rollback into plain values ('taken')",
    "insert into only_once values ('x');;insert into only_once values ('x')",
    "insert into armed values ('x')",
    "update or rollback plain set id = 'taken'",
    "pragma synchronous = off",
    "pragma journal_mode = delete",
    "pragma user_version = 9999",
    "pragma wal_checkpoint(truncate)",
    "select * from pragma_table_info('events')",
    "create trigger t after insert on events begin delete from payloads; end",
    "create trigger t instead of insert on v_events begin select 1; end",
    "create temp trigger t after insert on events begin delete from payloads; end",
    "create trigger t after insert on effects begin delete from deliveries; end;;insert into effects values ('x')",
    "create temp table events (x)",
    "create table deliveries (x)",
    "create table if not exists x (e references events (seq));;select 1",
    "create view x as select * from payloads;;select * from x",
    "create index i on events (type)",
    "drop table events",
    "drop index deliveries_due",
    "alter table events rename to mine",
    "alter table plain rename to replays2;;alter table events add column x",
    "delete from events",
    "with x as (select 1) delete from deliveries",
    "update deliveries set state = 'done'",
    "replace into totals (source, what, n) values ('demo', 'received', 0)",
    "insert into events (source, id) values ('demo', 'forged') on conflict do nothing",
    "select body from payloads",
    "select * from sqlite_schema where name = (select min(id) from events)",
    "attach ':memory:' as mine",
    "detach main",
    "vacuum",
    "vacuum into 'copy.db'",
    "analyze",
    "reindex events",
    "select load_extension('x')",
    "insert into sqlite_schema values ('table', 'x', 'x', 0, 'create table x (y)')",
    "select 1; commit",
    "not even sql",
)
# These swallow every error and go on. What has ended the transaction must still fail.
QUIET_BUT_DEADLY = (
    "insert or rollback into plain values ('taken')",
    "insert into only_once values ('x');;insert into only_once values ('x')",
    "insert into armed values ('x')",
)
QUIET_AND_HARMLESS = ("", "commit", "rollback", "delete from events", "pragma synchronous = off", "release handler")
OTHERS = (
    ("own-text", ""),
    ("exit", "exit"),
    ("exit", "interrupt"),
    ("exit", "generator"),
    ("keep", ""),
    ("keep", ""),
    ("thread", ""),
)


def attack(server: Server) -> None:
    """All of them at once, mixed with good events behind a plug, so that they share slices and transactions."""
    attacks = [*(("sql", text) for text in LOUD), *(("quiet-sql", text) for text in QUIET_BUT_DEADLY), *OTHERS]
    harmless = [("quiet-sql", text) for text in QUIET_AND_HARMLESS]
    good, fail, survive = [], {}, []
    with Client(server) as client:
        assert client.post("plug", type="plug").status == 202
        for number, (type, text) in enumerate([*attacks, *harmless]):
            for neighbour in range(GOOD_BETWEEN):
                good.append(f"good-{number}-{neighbour}")
                assert client.post(good[-1], type="good").status == 202
            id = f"attack-{number}"
            assert client.post(id, text.encode(), type=type).status == 202
            if (type, text) in attacks:
                fail[id] = text
            else:
                survive.append(id)
    until(lambda: not set(server.states()) & {"pending", "running"}, 30, "all settled")
    _only_the_guilty_failed(server, good, fail, survive)


def _only_the_guilty_failed(server: Server, good: list[str], fail: dict[str, str], survive: list[str]) -> None:
    states = dict(server.rows("select id, state from v_events"))
    assert {id: (fail[id], states[id]) for id in fail if states[id] != "dead"} == {}
    assert [id for id in [*good, *survive] if states[id] != "done"] == []
    effects = server.rows("select id, count(*) from effects group by 1 order by 1")
    assert effects == sorted([*((id, 1) for id in good), *((id, 2) for id in survive)])
    wrong = server.rows(
        "select e.id, d.attempts, d.error from v_deliveries d join v_events e using (seq) "
        "where d.attempts <> 1 or d.error like 'RuntimeError: allowed: [''%' "
        "or (d.state = 'dead') <> (d.error is not null)"
    )
    assert wrong == []
    assert server.rows("select name from sqlite_schema where name in ('t', 'i', 'x', 'mine', 'replays2')") == []
    assert server.rows("pragma user_version") != [(9999,)]
    assert not (server.folder / "copy.db").exists()
