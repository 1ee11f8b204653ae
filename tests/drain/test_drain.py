"""The drain on a real store: every kind of handler, every way to end."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from drain.conftest import Box, Clock, OpenBox, OpenQuiet, arrival
from oncebox import Dead, Event, Retry, StagedTransaction, Transaction, on, setup
from oncebox.drain.drain import set_up
from oncebox.drain.load import Handlers
from oncebox.errors import HandlerError

pytestmark = pytest.mark.anyio


@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (id text, what text)")


@on("demo")
def write(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?, 'written')", (event.id,))


async def test_a_transactional_handler_commits_with_its_mark(open_box: OpenBox) -> None:
    async with open_box(tables, write) as box:
        await box.receive(*(f"e{n:03}" for n in range(300)))
        await box.settle()
        assert await box.rows("select count(*), count(distinct id) from effects") == [(300, 300)]
        assert await box.rows("select distinct state, attempts from v_deliveries") == [("done", 1)]


async def test_a_blocking_handler_runs_in_a_thread_of_its_own(open_box: OpenBox) -> None:
    threads: set[int] = set()

    @on("demo")
    def work(event: Event) -> None:
        threads.add(threading.get_ident())

    async with open_box(work) as box:
        await box.receive("a", "b", "c")
        await box.settle()
        assert await box.states() == [(id, "done", 1, "ok") for id in "abc"]
    assert threading.get_ident() not in threads


async def test_an_async_handler_sees_the_event_as_it_came(open_box: OpenBox) -> None:
    seen: list[Event] = []

    @on("demo", type="in*")
    async def look(event: Event) -> None:
        seen.append(event)

    async with open_box(look) as box:
        await box.receive("a", type="invoice", body=b'{"n": 9007199254740993}')
        await box.receive("b", type="other")
        await box.settle()
    [event] = seen
    assert (event.id, event.type, event.json(), event.attempt) == ("a", "invoice", {"n": 9007199254740993}, 1)


async def test_staged_writes_and_emits_commit_with_the_mark(open_box: OpenBox) -> None:
    mailed: list[tuple[str, bytes, int | None]] = []

    @on("demo")
    async def pay(event: Event, db: StagedTransaction) -> None:
        params = [event.id, "staged"]
        db.execute("insert into effects values (?, ?)", params)
        params[1] = "changed later"
        db.executemany("insert into effects values (?, ?)", [(event.id, "x"), (event.id, "y")])
        db.emit("mail", id=f"mail-{event.id}", body={"to": "a@example.com"})
        assert await db.read("select count(*) from effects") == [(0,)]

    @on("mail")
    async def mail(event: Event) -> None:
        mailed.append((event.id, event.body, event.parent))

    async with open_box(tables, pay, mail) as box:
        await box.receive("a")
        await box.settle()
        assert await box.rows("select what from effects order by 1") == [("staged",), ("x",), ("y",)]
        assert await box.rows("select distinct state from v_deliveries") == [("done",)]
    assert mailed == [("mail-a", b'{"to":"a@example.com"}', 1)]


@pytest.mark.parametrize(
    "statement", ["insert into nowhere values (1)", "insert into events (id) values ('x')", "commit", "select ?"]
)
async def test_if_staged_writes_fail_none_is_kept_and_the_attempt_failed(open_box: OpenBox, statement: str) -> None:
    @on("demo")
    async def pay(event: Event, db: StagedTransaction) -> None:
        db.execute("insert into effects values (?, 'kept?')", (event.id,))
        db.execute(statement)

    async with open_box(tables, pay) as box:
        await box.receive("a")
        await box.settle()
        assert await box.rows("select * from effects") == []
        [(state, outcome, error)] = await box.rows("select state, outcome, error from v_deliveries")
        assert (state, outcome) == ("pending", "error")
        assert error.startswith("staged: ")


async def test_rows_of_a_staged_statement_fail_the_attempt(open_box: OpenBox) -> None:
    @on("demo")
    async def look(_event: Event, db: StagedTransaction) -> None:
        [(_count,)] = db.execute("select 1")

    async with open_box(look) as box:
        await box.receive("a")
        await box.settle()
        [(error,)] = await box.rows("select error from v_deliveries")
        assert error.startswith("oncebox.errors.Staged: ")
        assert "await db.read" in error


async def test_a_handlers_error_is_kept_for_people_and_tried_again_by_the_schedule(
    open_box: OpenBox, caplog: pytest.LogCaptureFixture
) -> None:
    @on("demo", retry={"attempts": 3, "base": "5s", "factor": 3})
    async def fail(event: Event) -> None:
        raise ValueError(f"bad body: {event.text()}")

    async with open_box(fail) as box:
        await box.receive("a", body=b'"secret"')
        await box.settle()
        [(state, due, error)] = await box.rows("select state, due, error from v_deliveries")
        assert (state, due) == ("pending", box.clock() + 5_000_000)
        assert error.startswith('ValueError: bad body: "secret"\n\nTraceback')
        assert "drain/target.py" not in error
        await box.pass_time(4.9)
        assert await box.states() == [("a", "pending", 1, "error")]
        await box.pass_time(0.1)
        assert await box.states() == [("a", "pending", 2, "error")]
        await box.pass_time(15)
        assert await box.states() == [("a", "dead", 3, "error")]
        assert await box.rows("select number, outcome from attempts") == [(1, "error"), (2, "error"), (3, "error")]
    assert "secret" not in caplog.text
    assert "state=dead" in caplog.text


@pytest.mark.parametrize("kind", ["transactional", "blocking", "async"])
async def test_a_handler_can_ask_for_later_or_give_up(open_box: OpenBox, kind: str) -> None:
    def judge(event: Event) -> None:
        if event.id == "dead":
            raise Dead("no such customer")
        if event.id == "later" and event.attempt == 1:
            raise Retry("not yet", after="5m")

    async def judge_async(event: Event) -> None:
        judge(event)

    def judge_in_transaction(event: Event, db: Transaction) -> None:
        db.execute("insert into effects values (?, 'x')", (event.id,))
        judge(event)

    functions: dict[str, Any] = {"transactional": judge_in_transaction, "blocking": judge, "async": judge_async}
    async with open_box(tables, on("demo")(functions[kind])) as box:
        await box.receive("dead", "later", "fine")
        await box.settle()
        assert await box.states() == [
            ("dead", "dead", 1, "refused"),
            ("fine", "done", 1, "ok"),
            ("later", "pending", 1, "error"),
        ]
        assert await box.rows("select error from v_deliveries where error is not null order by 1") == [
            ("Dead: no such customer",),
            ("Retry: not yet",),
        ]
        await box.pass_time(299)
        assert ("later", "pending", 1, "error") in await box.states()
        await box.pass_time(1)
        assert ("later", "done", 2, "ok") in await box.states()
        if kind == "transactional":
            assert await box.rows("select id from effects order by 1") == [("fine",), ("later",)]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
async def test_nothing_that_a_handler_raises_ends_the_drain(open_box: OpenBox, error: BaseException) -> None:
    def raise_if_bad(event: Event) -> None:
        if event.id == "bad":
            raise error

    @on("demo")
    def transactional(event: Event, db: Transaction) -> None:
        raise_if_bad(event)

    @on("demo")
    def blocking(event: Event) -> None:
        raise_if_bad(event)

    @on("demo")
    async def awaited(event: Event) -> None:
        raise_if_bad(event)

    async with open_box(transactional, blocking, awaited) as box:
        await box.receive("bad")
        await box.receive("good")
        await box.settle()
        states = await box.states()
        assert states == [("bad", "pending", 1, "error")] * 3 + [("good", "done", 1, "ok")] * 3
        assert box.drain.alive()


async def test_a_handler_that_cancels_itself_has_failed(open_box: OpenBox) -> None:
    @on("demo")
    async def cancels(event: Event) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep_forever()

    async with open_box(cancels) as box:
        await box.receive("a")
        await box.settle()
        assert await box.states() == [("a", "pending", 1, "error")]


async def test_a_handler_that_forgets_async_is_told(open_box: OpenBox) -> None:
    async def helper() -> None:
        raise AssertionError

    @on("demo")
    def forgets(event: Event, db: Transaction) -> object:
        return helper()

    async with open_box(forgets) as box:
        await box.receive("a")
        await box.settle()
        [(state, error)] = await box.rows("select state, error from v_deliveries")
        assert state == "pending"
        assert "async def" in error


async def test_a_timeout_ends_the_attempt_and_cancels_the_handler(open_box: OpenBox) -> None:
    cancelled = anyio.Event()

    @on("demo", timeout="20ms")
    async def slow(event: Event) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async with open_box(slow) as box:
        await box.receive("a")
        await box.settle()
        assert await box.states() == [("a", "pending", 1, "timeout")]
        assert cancelled.is_set()


async def test_a_handler_that_ignores_cancellation_holds_only_its_own_slot(open_box: OpenBox) -> None:
    let_go, ignored = asyncio.Event(), asyncio.Event()
    passed: list[str] = []

    @on("demo", timeout="20ms", concurrency=2)
    async def stubborn(event: Event) -> None:
        while event.id == "bad" and not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                ignored.set()
        passed.append(event.id)

    async with open_box(stubborn) as box:
        await box.receive("bad")
        await ignored.wait()
        await box.receive("g1", "g2", "g3")
        await until_rows(box, "select count(*) from v_deliveries where state = 'done'", [(3,)])
        assert ("bad", "running", 1, None) in await box.states()
        box.clock.move(1e6)
        box.drain.wake()
        await box.receive("g4")
        await until(lambda: len(passed) == 4)
        assert box.drain.stuck() == []
        let_go.set()
        await box.settle()
        assert ("bad", "pending", 1, "timeout") in await box.states()


async def test_a_target_whose_every_slot_is_held_past_its_time_is_stuck(open_box: OpenBox) -> None:
    let_go = threading.Event()
    ran: list[int] = []

    @on("demo", timeout="10ms", concurrency=1)
    def hang(event: Event) -> None:
        ran.append(event.attempt)
        let_go.wait(20)

    async with open_box(hang) as box:
        await box.receive("a")
        await until(lambda: box.drain.stuck() == ["hang"])
        assert box.drain.trouble() == ["target hang is stuck: none of its handlers returns"]
        box.clock.move(3600)
        for _ in range(50):
            box.drain.wake()
            assert await box.states() == [("a", "running", 1, None)]
        assert ran == [1]
        let_go.set()
        await box.settle()
        assert box.drain.stuck() == []
        assert await box.states() == [("a", "pending", 1, "timeout")]


async def test_a_target_runs_no_more_at_a_time_than_it_may(open_box: OpenBox) -> None:
    running = most = 0

    @on("demo", concurrency=3)
    async def count(event: Event) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.001)
        running -= 1

    async with open_box(count) as box:
        await box.receive(*(f"e{n}" for n in range(50)))
        await box.settle()
        assert await box.rows("select state, count(*) from v_deliveries group by 1") == [("done", 50)]
    assert most == 3


async def test_a_rate_holds_deliveries_back(open_box: OpenBox) -> None:
    started: list[float] = []

    @on("demo", rate="50/s", concurrency=100)
    async def paced(event: Event) -> None:
        started.append(anyio.current_time())

    async with open_box(paced) as box:
        await box.receive(*(f"e{n}" for n in range(15)))
        await box.settle()
    # Five may go at once, the other ten follow at 20 ms each.
    assert len(started) == 15
    assert max(started) - min(started) > 0.17


async def test_events_of_one_key_go_one_after_another_in_their_order(open_box: OpenBox) -> None:
    done: list[str] = []
    running: set[str] = set()

    @on("demo", ordered_by="/key", concurrency=8)
    async def ordered(event: Event) -> None:
        key = event.id[0]
        assert key not in running
        running.add(key)
        await anyio.sleep(0.001)
        running.discard(key)
        done.append(event.id)

    async with open_box(ordered) as box:
        for n in range(8):
            for key in "abc":
                await box.receive(f"{key}{n}", body=b'{"key": "%s"}' % key.encode())
        await box.settle()
    for key in "abc":
        assert [id for id in done if id[0] == key] == [f"{key}{n}" for n in range(8)]


async def test_three_overruns_of_a_transactional_handler_pause_it(
    open_box: OpenBox, caplog: pytest.LogCaptureFixture
) -> None:
    @on("demo", type="slow")
    def slow(event: Event, db: Transaction) -> None:
        db.execute("insert into effects values (?, 'slow')", (event.id,))
        threading.Event().wait(0.06)

    @on("demo", type="quick")
    def quick(event: Event, db: Transaction) -> None:
        db.execute("insert into effects values (?, 'quick')", (event.id,))

    async with open_box(tables, slow, quick, sync_timeout=0.05) as box:
        await box.receive("s1", "s2", "s3", "s4", type="slow")
        await until_rows(box, "select count(*) from paused", [(1,)])
        await box.receive("q", type="quick")
        await box.settle()
        assert await box.rows("select * from effects") == [("q", "quick")]
        assert await box.rows("select outcome, count(*) from v_deliveries where target = 'slow' group by 1") == [
            (None, 1),
            ("timeout", 3),
        ]
        [reason] = (await box.store.paused()).values()
        assert "3 attempts of this transactional handler took 0.05 s or longer" in reason
        await box.store.resume("slow")
        await until_rows(box, "select count(*) from v_deliveries where outcome = 'timeout'", [(4,)])
    assert sum("slow transactional handler target=slow" in message for message in caplog.messages) == 1
    assert "alert=paused target=slow" in caplog.text


async def test_sql_that_spins_is_interrupted_and_fails_the_attempt(open_box: OpenBox) -> None:
    spin = "with recursive n (i) as (select 1 union all select i + 1 from n) select max(i) from n"

    @on("demo", type="spin")
    def spinner(event: Event, db: Transaction) -> None:
        db.execute(spin)

    async with open_box(spinner) as box:
        await box.receive("a", type="spin")
        await box.settle()
        assert await box.states() == [("a", "pending", 1, "timeout")]


async def test_what_a_transactional_handler_emits_wakes_its_target_at_once(open_box: OpenBox) -> None:
    mailed: list[str] = []

    @on("demo")
    def emit(event: Event, db: Transaction) -> None:
        assert db.emit("mail", id=event.id, body="hello")
        assert not db.emit("mail", id=event.id, body="hello")

    @on("mail")
    async def mail(event: Event) -> None:
        mailed.append(f"{event.id} {event.text()} {event.content_type}")

    async with open_box(emit, mail) as box:
        await box.receive("a")
        await box.settle()
    assert mailed == ["a hello text/plain; charset=utf-8"]


async def test_an_emit_loop_ends_dead(open_box: OpenBox) -> None:
    @on("demo")
    def start(event: Event, db: Transaction) -> None:
        db.emit("loop", id="0")

    @on("loop")
    def again(event: Event, db: Transaction) -> None:
        db.emit("loop", id=str(int(event.id) + 1))

    async with open_box(start, again) as box:
        await box.receive("a")
        await box.settle()
        [(error,)] = await box.rows("select error from v_deliveries where state = 'dead'")
        assert "emit loop" in error
        assert await box.rows("select count(*) from v_deliveries where state not in ('done', 'dead')") == [(0,)]


async def test_deliveries_of_targets_that_nobody_has_wait(open_box: OpenBox, open_quiet: OpenQuiet) -> None:
    @on("demo")
    async def gone(event: Event) -> None:
        raise AssertionError

    @on("demo")
    async def there(event: Event) -> None:
        pass

    async with open_quiet(gone) as store:
        await store.accept([arrival("a", at=Clock()())])
    async with open_box(there) as box:
        await box.receive("b")
        box.drain.wake({"gone", "nobody"})
        await box.settle()
        assert await box.states() == [("a", "pending", 0, None), ("b", "done", 1, "ok")]


async def test_a_setup_that_fails_is_named(open_quiet: OpenQuiet) -> None:
    @setup
    def broken(db: Transaction) -> None:
        db.execute("create table events (x)")

    async with open_quiet() as store:
        with pytest.raises(HandlerError, match=r"test_drain.py, line \d+ failed: ForbiddenSQL"):
            await set_up(store, Handlers(setups=(broken,)))


@contextmanager
def refusing(path: Path, state: str) -> Iterator[None]:
    """As long as the block lasts, the file refuses to have any delivery in that state."""
    with closing(sqlite3.connect(path, isolation_level=None)) as outside:
        outside.execute(
            f"create trigger refusing before update on deliveries when new.state = '{state}' "
            "begin select raise(abort, 'the disk is gone'); end"
        )
        yield
        outside.execute("drop trigger refusing")


async def test_claims_that_the_file_refuses_are_survived_and_logged_once(
    open_box: OpenBox, caplog: pytest.LogCaptureFixture
) -> None:
    @on("demo")
    async def work(event: Event) -> None:
        pass

    @on("demo")
    def also(event: Event, db: Transaction) -> None:
        pass

    async with open_box(work, also) as box:
        await box.settle()
        with refusing(box.store.path, "running"):
            await box.receive("a")
            await until(lambda: len(box.drain.trouble()) == 2)
            assert all("IntegrityError: the disk is gone" in reason for reason in box.drain.trouble())
            assert not box.drain.alive()
        await until(box.drain.alive)
        await box.settle()
        assert await box.states() == [("a", "done", 1, "ok")] * 2
    assert sum("drain failed loop=target work" in message for message in caplog.messages) == 1


async def test_an_outcome_that_the_file_refuses_waits_and_is_written_later(
    open_box: OpenBox, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @on("demo")
    async def work(event: Event, db: StagedTransaction) -> None:
        ran.append(event.id)
        db.execute("insert into effects values (?, 'once')", (event.id,))

    async with open_box(tables, work) as box:
        await box.settle()
        with refusing(box.store.path, "done"):
            await box.receive("a")
            await until(lambda: "store call failed call=settle" in caplog.text)
        await box.settle()
        assert await box.states() == [("a", "done", 1, "ok")]
        assert await box.rows("select * from effects") == [("a", "once")]
    assert ran == ["a"]


@pytest.mark.parametrize("value", [object(), 2.0**70])
async def test_a_value_that_the_database_cannot_take_fails_the_attempt(open_box: OpenBox, value: object) -> None:
    class Huge(int):
        pass

    @on("demo")
    async def work(event: Event, db: StagedTransaction) -> None:
        db.execute("insert into effects values (?, ?)", (event.id, value))

    async with open_box(tables, work) as box:
        await box.receive("a")
        await box.settle()
        [(state, attempts)] = await box.rows("select state, attempts from v_deliveries")
        assert (state, attempts) == (("pending", 1) if type(value) is object else ("done", 1))


async def until(holds: Any) -> None:
    """Until something that no event tells of holds; looked at again whenever the loop comes round."""
    with anyio.fail_after(20):
        while not holds():  # noqa: ASYNC110  # nothing tells of it
            await anyio.sleep(0.001)


async def until_rows(box: Box, sql: str, expected: list[Any]) -> None:
    with anyio.fail_after(20):
        while await box.rows(sql) != expected:  # noqa: ASYNC110  # nothing tells of it
            await anyio.sleep(0.001)
