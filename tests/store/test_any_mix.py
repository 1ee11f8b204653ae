"""Any mix of accepts, twins, attempts, late results, reruns, pauses, stops and deaths keeps the promise."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oncebox.errors import IdConflict
from oncebox.model import Arrival, Claimed, Planned, Settled, StagedWrites
from oncebox.store import Transaction
from oncebox.store.books import Books
from oncebox.store.choice import Picked
from oncebox.store.reruns import LIVE, put_back
from oncebox.store.sqlite import Options, SQLiteStore, open_store
from store.conftest import NOW, Running, arrival, books_are_right, ended, rows

T = TypeVar("T")

SECOND = 1_000_000
PYTHON = ("sql", "line", "async")
TARGETS = (*PYTHON, "url", "queue")
IDS = [f"{key}-{n}" for key in "ab" for n in range(4)] + [f"free{n}" for n in range(4)]
ENDED = "select seq, target, run, order_key from deliveries where state in ('done', 'dead') and target = ? order by seq"
BEHAVIOURS = ("well", "well", "well", "fails", "gives up", "emits", "breaks", "swallows", "fault", "forbidden")


def routed(one: Arrival) -> Sequence[Planned]:
    """All kinds of targets, two of them in order by what stands before the dash."""
    if one.source == "mail":
        return (Planned("sql"),)
    key = one.id.split("-")[0] if "-" in one.id else None
    return (Planned("sql"), Planned("line", key), Planned("async"), Planned("url"), Planned("queue", key))


class Handler(Running):
    """A transactional handler that behaves as the dice say; it may be looked at in the middle."""

    def __init__(self, dice: random.Random, during: Callable[[], None] = lambda: None) -> None:
        super().__init__(self.handle)
        self._dice = dice
        self._during = during

    def handle(self, claimed: Claimed, db: Transaction) -> None:
        event = claimed.event
        db.execute("insert into effects values (?, ?, ?)", (event.seq, claimed.target, claimed.run))
        self._during()
        behaviour = self._dice.choice(BEHAVIOURS)
        if behaviour == "fails":
            raise ValueError("it fails")
        if behaviour == "gives up":
            raise LookupError("dead")
        if behaviour == "emits" and event.source != "mail":
            db.emit("mail", id=f"of {event.source} {event.id}")
        if behaviour == "forbidden":
            db.execute("delete from events")
        if behaviour == "breaks":
            db.execute("insert or rollback into once values (1)")
        if behaviour == "swallows":
            with contextlib.suppress(sqlite3.IntegrityError):
                db.execute("insert or rollback into once values (1)")
        if behaviour == "fault":
            raise KeyboardInterrupt

    def run(self, claimed: Claimed, db: Transaction) -> Settled:
        try:
            settled = super().run(claimed, db)
        except KeyboardInterrupt:
            raise ArithmeticError("the runner's own") from None
        return msgspec.structs.replace(settled, state="dead") if settled.error == "dead" else settled


class Inbox(RuleBasedStateMachine):
    """A store on a real file, and what has been promised of it so far."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.file = 0
        self.now = NOW
        self.known: dict[tuple[str, str], tuple[int, int]] = {}
        self.flying: list[Claimed] = []
        self.late: list[Claimed] = []
        self.alone: list[Claimed] = []
        self.open()

    # the store in a task of its own, which runs only while a rule does

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        async def done() -> T:
            return await work()

        return self.loop.run(done())

    def open(self) -> None:
        async def opened() -> SQLiteStore:
            ready: asyncio.Future[SQLiteStore] = asyncio.get_running_loop().create_future()
            self.stop = asyncio.Event()
            self.task = asyncio.create_task(self.hold(ready))
            either: set[asyncio.Future[Any]] = {ready, self.task}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return await ready

        self.store = self.do(opened)
        self.do(lambda: self.store.write(tables, self.now))
        self.do(lambda: self.store.recover(PYTHON, self.now))

    async def hold(self, ready: asyncio.Future[SQLiteStore]) -> None:
        path = self.folder / str(self.file) / "inbox.db"
        path.parent.mkdir(exist_ok=True)
        options = Options(durability="normal")
        async with open_store(path, router=routed, internal=frozenset({"mail"}), options=options) as store:
            ready.set_result(store)
            await self.stop.wait()

    def close(self) -> None:
        async def closed() -> None:
            self.stop.set()
            await self.task

        self.do(closed)

    def image(self) -> None:
        """What a death at this moment would leave behind, as the next file."""
        here, there = self.folder / str(self.file), self.folder / str(self.file + 1)
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        for name in ("inbox.db", "inbox.db-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(here / name, there / name)

    def die(self) -> None:
        """Go on with the image that was taken."""
        self.close()
        shutil.rmtree(self.folder / str(self.file))
        self.file += 1
        self.lose_attempts()
        self.open()

    def lose_attempts(self) -> None:
        self.late += self.flying + self.alone
        self.flying, self.alone = [], []

    # what senders do

    @rule(ids=st.lists(st.sampled_from(IDS), min_size=1, max_size=9), source=st.sampled_from(["demo", "other"]))
    def receive(self, ids: list[str], source: str) -> None:
        self.remember(
            source, ids, self.do(lambda: self.store.accept([arrival(id, source=source, at=self.now) for id in ids]))
        )

    @rule(id=st.sampled_from(IDS), bodies=st.lists(st.sampled_from([b"{}", b"[]", b"3"]), min_size=2, max_size=5))
    def receive_twins(self, id: str, bodies: list[bytes]) -> None:
        async def twins() -> list[Any]:
            return await asyncio.gather(*(self.store.accept([arrival(id, body, at=self.now)]) for body in bodies))

        answers = self.do(twins)
        self.remember("demo", [id] * len(bodies), [one for [one] in answers])

    @rule(id=st.sampled_from(IDS))
    def receive_another_body_that_is_refused(self, id: str) -> None:
        seen = ("demo", id) in self.known
        batch = [arrival("never", at=self.now), arrival(id, b"other", at=self.now, reject_conflict=True)]
        if not seen:
            return
        with contextlib.suppress(IdConflict):
            self.do(lambda: self.store.accept(batch))
            raise AssertionError("it was not refused")

    def remember(self, source: str, ids: Sequence[str], answers: Sequence[Any]) -> None:
        for id, one in zip(ids, answers, strict=True):
            first = self.known.setdefault((source, id), (one.seq, one.received_at))
            assert (one.seq, one.received_at) == first

    # what the drain does

    @rule(to=st.sampled_from(["async", "url", "queue"]), limit=st.integers(1, 6))
    def claim(self, to: str, limit: int) -> None:
        self.flying += self.do(lambda: self.store.claim(to, limit, self.now))

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), state=st.sampled_from(["done", "done", "pending", "dead"]), at_once=st.booleans())
    def settle(self, data: st.DataObject, state: str, at_once: bool) -> None:
        count = data.draw(st.integers(1, len(self.flying)), "how many")
        ending, self.flying = self.flying[:count], self.flying[count:]
        due = self.now if at_once else self.now + 30 * SECOND
        settled = [ended(one, state, due=due) for one in ending]
        assert self.do(lambda: self.store.settle_all(settled)) == [True] * count
        self.late += ending

    @precondition(lambda self: self.flying)
    @rule(bad=st.booleans())
    def settle_with_staged_writes(self, bad: bool) -> None:
        one = self.flying.pop(0)
        effect = ("insert into effects values (?, ?, ?)", (one.event.seq, one.target, one.run))
        failing = ("insert or rollback into once values (1)", ())
        staged = StagedWrites((effect, failing) if bad else (effect,))
        assert self.do(lambda: self.store.settle(ended(one), staged, ended(one, "pending", due=self.now)))
        self.late.append(one)

    @precondition(lambda self: self.late)
    @rule(data=st.data(), staged=st.booleans())
    def settle_late(self, data: st.DataObject, staged: bool) -> None:
        one = data.draw(st.sampled_from(self.late), "which")
        writes = StagedWrites((("insert into effects values (-1, 'late', 1)", ()),)) if staged else None
        assert not self.do(lambda: self.store.settle(ended(one), writes, ended(one, "dead")))

    @precondition(lambda self: self.flying)
    @rule()
    def release(self) -> None:
        self.do(lambda: self.store.release(self.flying, self.now))
        self.flying = []

    @rule(seed=st.integers(0, 1 << 32))
    def process(self, seed: int) -> None:
        self.do(lambda: self.store.process(("sql", "line"), Handler(random.Random(seed)), lambda: self.now))

    @rule(seed=st.integers(0, 1 << 32))
    def run_a_suspect(self, seed: int) -> None:
        self.do(lambda: self.store.release_held(self.now))
        claimed = self.do(lambda: self.store.claim_suspect(PYTHON, self.now))
        if claimed is None:
            return
        if claimed.target == "async":
            self.flying.append(claimed)
            return
        self.do(lambda: self.store.process_alone(claimed, Handler(random.Random(seed)), lambda: self.now))

    @rule(seconds=st.sampled_from([1, 10, 61, 601]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule()
    def count_repeats_and_revive(self) -> None:
        self.do(lambda: self.store.writer.slice(self.store.care.flush))

    # what people do

    @rule(to=st.sampled_from(TARGETS), every=st.integers(1, 3))
    def run_again(self, to: str, every: int) -> None:
        found = self.do(lambda: rows(self.store, ENDED, to))[::every]

        def again(db: sqlite3.Connection, books: Books) -> list[bool]:
            return [put_back(db, Picked(*row), None, LIVE, self.now, books, frozenset()) for row in found]

        assert self.do(lambda: self.store.change(again)) == [True] * len(found)

    @rule(to=st.sampled_from(TARGETS))
    def pause(self, to: str) -> None:
        self.do(lambda: self.store.pause(to, "why", self.now))

    @rule(to=st.sampled_from(TARGETS))
    def resume(self, to: str) -> None:
        self.do(lambda: self.store.resume(to))

    @rule()
    def stop_and_start(self) -> None:
        self.do(lambda: self.store.release_held(self.now))
        self.do(lambda: self.store.release(self.flying + self.alone, self.now))
        self.flying, self.alone = [], []
        self.close()
        self.open()

    @rule()
    def be_killed(self) -> None:
        self.image()
        self.die()

    @rule(seed=st.integers(0, 1 << 32), at=st.integers(1, 4))
    def be_killed_in_a_handler(self, seed: int, at: int) -> None:
        calls: list[int] = []

        def during() -> None:
            calls.append(1)
            if len(calls) == at:
                self.image()

        self.image()
        self.do(lambda: self.store.process(("sql", "line"), Handler(random.Random(seed), during), lambda: self.now))
        self.die()

    # what must hold after each of them

    @invariant()
    def the_promise_is_kept(self) -> None:
        events, running, broken = self.do(lambda: self.store.read(looked_at))
        assert broken == {}
        assert {(source, id): (seq, at) for source, id, seq, at in events} == self.known
        held = [*self.flying, *self.store.slices._held]
        assert running == sorted((c.event.seq, c.target, c.run, c.attempt) for c in held)

    def teardown(self) -> None:
        try:
            self.do(self.finish)
        finally:
            self.close()
            self.loop.close()
            shutil.rmtree(self.folder)

    async def finish(self) -> None:
        """Left alone with targets that work, everything ends, but for what waits behind the dead."""
        store, settled = self.store, self.flying
        for target in TARGETS:
            await store.resume(target)
        self.now += 3600 * SECOND
        well = Running(lambda c, db: db.execute("insert into effects values (?, ?, ?)", (c.event.seq, c.target, c.run)))
        await store.settle_all([ended(one) for one in settled])
        await store.release_held(self.now)
        while (suspect := await store.claim_suspect(PYTHON, self.now)) is not None:
            if suspect.target == "async":
                await store.settle(ended(suspect))
            else:
                await store.process_alone(suspect, well, lambda: self.now)
        for target in ("async", "url", "queue"):
            while claimed := await store.claim(target, 9, self.now):
                await store.settle_all([ended(one) for one in claimed])
        while (await store.process(("sql", "line"), well, lambda: self.now)).more:
            pass
        assert await rows(store, "select * from deliveries where state in ('pending', 'running')") == []
        self.flying = []
        behind = (
            "select * from deliveries p where state = 'parked' and not exists (select 1 from deliveries d "
            "where d.target = p.target and d.order_key = p.order_key and d.state = 'dead' and d.seq < p.seq)"
        )
        assert await rows(store, behind) == []
        await books_are_right(store)


# What no look at the file may ever find.
NEVER = {
    "a count that is wrong": (
        "select what, sum(n) from (select what, n from totals where minute = 0 union all "
        "select state, -count(*) from deliveries group by 1 union all select 'received', -count(*) from events) "
        "where what in ('received', 'pending', 'parked', 'running', 'done', 'dead') group by 1 having sum(n) <> 0"
    ),
    "an event that went elsewhere than its routes say": (
        "select seq, source from events e where (select count(*) from deliveries d where d.seq = e.seq) <> "
        "case source when 'mail' then 1 else 5 end"
    ),
    "an event without its body": "select seq from events where seq not in (select seq from payloads)",
    "an effect that happened twice": "select * from effects group by seq, target, run having count(*) > 1",
    "an effect of a late result": "select * from effects where seq < 0",
    "an effect without its mark, or a mark without": (
        "select seq, target, run, state from deliveries d where target in ('sql', 'line') and (state = 'done') <> "
        "exists (select 1 from effects f where f.seq = d.seq and f.target = d.target and f.run = d.run)"
    ),
    "two of a key in flight": (
        "select target, order_key from deliveries where order_key is not null and state in ('pending', 'running') "
        "group by 1, 2 having count(*) > 1"
    ),
    "one that waits for nothing": (
        "select p.target, p.order_key from deliveries p where p.state = 'parked' and not exists "
        "(select 1 from deliveries f where f.target = p.target and f.order_key = p.order_key "
        "and f.state in ('pending', 'running')) and 'dead' <> (select state from deliveries h "
        "where h.target = p.target and h.order_key = p.order_key and h.state <> 'done' order by seq limit 1)"
    ),
}
EVENTS = "select source, id, seq, received_at from events where source <> 'mail'"
RUNNING = "select seq, target, run, attempts from deliveries where state = 'running' order by 1, 2, 3, 4"


def looked_at(db: sqlite3.Connection) -> tuple[list[Any], list[Any], dict[str, list[Any]]]:
    found = {what: db.execute(sql).fetchall() for what, sql in NEVER.items()}
    broken = {what: some for what, some in found.items() if some}
    return db.execute(EVENTS).fetchall(), db.execute(RUNNING).fetchall(), broken


def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (seq integer, target text, run integer)")
    db.execute("create table if not exists once (x integer primary key)")
    db.execute("insert into once values (1) on conflict do nothing")


QUICK = settings(max_examples=15, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))


def test_any_mix_of_what_can_happen_keeps_the_promise() -> None:
    run_state_machine_as_test(Inbox, settings=QUICK)
