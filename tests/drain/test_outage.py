"""Targets that fail, hang, go away and come back: nothing is lost, and nothing comes again that was acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from drain.delivering import Inbox, claimed, delivering, posting, wall
from drain.receiver import CLOSE, Answer, Receiver, Request, receiving
from oncebox.drain import outcomes
from oncebox.drain.breaker import IN_A_ROW
from oncebox.drain.outage import Outage
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.verdict import OK, Verdict
from oncebox.model import Claimed

pytestmark = pytest.mark.anyio
PROBED = RetryPolicy(attempts=12, base=0.001, factor=1.5, ceiling=0.002)


async def probes(inbox: Inbox) -> int:
    ((count,),) = await inbox.rows("select count(*) from attempts")
    return int(count)


async def until_probed(inbox: Inbox, times: int) -> None:
    with_patience = 60_000
    while await probes(inbox) < times and with_patience:
        with_patience -= 1
        await asyncio.sleep(0.005)
    assert with_patience


def names(count: int) -> list[str]:
    return [f"e{n:05d}" for n in range(count)]


@pytest.mark.parametrize("events", [300, pytest.param(10_000, marks=pytest.mark.torture)])
async def test_a_receiver_that_fails_in_every_way_loses_nothing_and_repeats_nothing(
    tmp_path: Path, events: int
) -> None:
    dice = random.Random(7)

    async def fail_at_random(request: Request) -> Answer:
        if request.id.endswith("9"):
            return Answer(410)
        if request.id.endswith("8"):
            return Answer(500)
        roll = dice.random()
        if roll < 0.02:
            await asyncio.sleep(0.3)
            return CLOSE
        if roll < 0.4:
            return dice.choice([Answer(500), Answer(503), Answer(429, {"Retry-After": "0"}), Answer(502), CLOSE])
        return Answer(dice.choice([200, 201, 204]))

    async with receiving(fail_at_random) as receiver:
        make = posting(receiver.url, concurrency=8, timeout=0.2)
        async with delivering(tmp_path / "a.db", make) as inbox:
            for start in range(0, events, 500):
                await inbox.receive(*names(events)[start : start + 500])
            await inbox.idle(60 + events / 50)
            states = {id: state for id, state, *_ in await inbox.states()}
    done = {id for id, state in states.items() if state == "done"}
    assert set(states) == set(names(events))
    assert receiver.acknowledged == Counter(done)
    assert {id for id in states if id[-1] in "89"} <= {id for id, state in states.items() if state == "dead"}
    tried = Counter(request.id for request, _ in receiver.log)
    assert all(tried[id] == 1 for id in states if id.endswith("9"))
    assert all(tried[id] >= PROBED.attempts for id in states if id.endswith("8"))


@pytest.mark.parametrize("times", [150, pytest.param(3000, marks=pytest.mark.torture)])
async def test_after_an_outage_all_is_delivered_oldest_first_and_nothing_is_dead(tmp_path: Path, times: int) -> None:
    receiver = Receiver()
    async with delivering(tmp_path / "a.db", posting(receiver.url, concurrency=4, retry=PROBED)) as inbox:
        await inbox.receive(*names(40))
        await until_probed(inbox, times)
        assert inbox.drain.down() == ["hook"]
        await receiver.start()
        await inbox.idle()
        assert {row[1:] for row in await inbox.states()} == {("done", "ok", 0)}
    await receiver.stop()
    assert receiver.acknowledged == Counter(names(40))
    order = [request.id for request, _ in receiver.log]
    assert all(abs(order.index(id) - n) <= 4 for n, id in enumerate(names(40)) if id != order[0])
    assert receiver.most <= 4


@pytest.mark.parametrize("times", [150, pytest.param(3000, marks=pytest.mark.torture)])
async def test_a_receiver_that_is_unavailable_for_long_makes_nothing_dead(tmp_path: Path, times: int) -> None:
    async def unavailable(_request: Request) -> Answer:
        return Answer(503)

    async with receiving(unavailable) as receiver:
        make = posting(receiver.url, concurrency=4, retry=PROBED)
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive(*names(40))
            await until_probed(inbox, times)
            in_flight, receiver.most = receiver.in_flight, 0
            assert in_flight <= 1
            await until_probed(inbox, times + 20)
            assert receiver.most == 1
            receiver.behave = Receiver().behave
            await inbox.idle()
            states = await inbox.states()
        assert {row[1:3] for row in states} == {("done", "ok")}
        assert sum(row[3] for row in states) <= IN_A_ROW + 4
        assert receiver.acknowledged == Counter(names(40))
        probed = [request.id for request, status in receiver.log if status == 503][IN_A_ROW + 4 :][:40]
        assert all(one != other for one, other in pairwise(probed))


async def test_an_event_that_is_answered_with_500_for_ever_stops_no_other(tmp_path: Path) -> None:
    async def dislike(request: Request) -> Answer:
        return Answer(500 if request.id == "bad" else 200)

    async with receiving(dislike) as receiver:
        make = posting(receiver.url, retry=RetryPolicy(attempts=200, base=0.001, factor=1, ceiling=0.001))
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("bad", *names(30))
            await inbox.idle()
            assert inbox.drain.down() == []
            assert [row[:3] for row in await inbox.states() if row[1] != "done"] == [("bad", "dead", "error")]


async def test_an_event_that_hangs_the_receiver_does_not_keep_it_down_for_the_others(tmp_path: Path) -> None:
    broken = True

    async def hang(request: Request) -> Answer:
        if request.id == "bad":
            await asyncio.sleep(60)
        return Answer(503 if broken else 200)

    async with receiving(hang) as receiver:
        make = posting(receiver.url, timeout=0.05, retry=PROBED)
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("bad", *names(20))
            await inbox.until(lambda: inbox.drain.down() == ["hook"])
            broken = False
            await inbox.until(lambda: len(receiver.acknowledged) == 20)
            await inbox.idle()
            assert [row[:3] for row in await inbox.states() if row[1] != "done"] == [("bad", "dead", "timeout")]
    assert receiver.acknowledged == Counter(names(20))


async def test_new_events_do_not_wait_behind_the_backlog_of_an_outage(tmp_path: Path) -> None:
    receiver = Receiver()
    gate = asyncio.Semaphore(0)

    async def one_at_a_time(_request: Request) -> Answer:
        await gate.acquire()
        return Answer()

    async with delivering(tmp_path / "a.db", posting(receiver.url, concurrency=4, retry=PROBED)) as inbox:
        await inbox.receive(*names(200))
        await inbox.until(lambda: inbox.drain.down() == ["hook"])
        receiver.behave = one_at_a_time
        await receiver.start()
        gate.release()
        await inbox.until(lambda: inbox.drain.down() == [] and receiver.in_flight == 4)
        await inbox.until_running(4)  # what a quick target has claimed ahead is given back once it is slow
        await inbox.receive("new")
        for _ in range(500):
            gate.release()
        await inbox.idle()
    await receiver.stop()
    order = [request.id for request, _ in receiver.log]
    assert order.index("new") <= 12
    assert receiver.acknowledged == Counter([*names(200), "new"])


async def test_what_fails_just_before_the_return_is_due_again_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(request: Request) -> Answer:
        if request.id != "slow":
            return CLOSE
        await back.wait()
        receiver.behave = Receiver().behave
        return Answer(200)

    back = asyncio.Event()

    monkeypatch.setattr(outcomes, "MOMENT", 0.6)  # so that the failures are written after the return
    async with receiving(break_down) as receiver:
        make = posting(receiver.url, concurrency=16, retry=RetryPolicy(base=60.0))
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("slow", *names(IN_A_ROW + 3))
            await inbox.until(lambda: inbox.drain.down() == ["hook"] and receiver.in_flight == 1)
            back.set()
            await inbox.until(lambda: len(receiver.acknowledged) > 1, 5)


async def test_who_could_not_be_reached_has_its_turn_as_soon_as_another_is_through(tmp_path: Path) -> None:
    receiver = Receiver()
    try:
        async with delivering(tmp_path / "a.db", posting(receiver.url, retry=RetryPolicy(base=60.0))) as inbox:
            await inbox.receive("first")
            await until_probed(inbox, 1)
            await receiver.start()
            await asyncio.sleep(0.1)
            assert receiver.log == []
            await inbox.receive("second")
            await inbox.until(lambda: len(receiver.acknowledged) == 2, 5)
    finally:
        await receiver.stop()


async def test_who_has_been_reached_meanwhile_waits_as_it_was_told(tmp_path: Path) -> None:
    async def put_off(request: Request) -> Answer:
        return Answer(503, {"Retry-After": "60"}) if request.id == "first" else Answer()

    receiver = Receiver(put_off)
    try:
        make = posting(receiver.url, retry=RetryPolicy(base=0.3, factor=1))
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("first")
            await until_probed(inbox, 1)
            await receiver.start()
            await inbox.until(lambda: len(receiver.log) == 1)
            await inbox.receive("second")
            await inbox.until(lambda: len(receiver.acknowledged) == 1)
            await inbox.receive("third")
            await inbox.until(lambda: len(receiver.acknowledged) == 2)
            await asyncio.sleep(0.2)
            assert [request.id for request, _ in receiver.log] == ["first", "second", "third"]
    finally:
        await receiver.stop()


async def test_who_could_not_be_reached_is_tried_at_once_after_a_restart(tmp_path: Path) -> None:
    receiver = Receiver()
    make = posting(receiver.url, retry=RetryPolicy(base=60.0))
    try:
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive(*names(2))
            await until_probed(inbox, 2)
        await receiver.start()
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.until(lambda: receiver.acknowledged == Counter(names(2)), 5)
    finally:
        await receiver.stop()


class Told:
    """A target that ends each delivery as it is told, and when."""

    name, concurrency, timeout, rate = "hook", 4, 60.0, None
    in_process, stoppable, keeps_time = False, True, True
    retry = RetryPolicy(base=0.1, factor=100)

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[Verdict]] = []

    async def deliver(self, _claimed: Claimed) -> Verdict:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]


async def test_who_fails_again_while_hurried_up_is_hurried_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable = Verdict(outcome="unreachable", down=True)
    told, hurrying, failed = Told(), asyncio.Event(), asyncio.Event()

    async def slowly(target: str, seqs: Sequence[int], now: int) -> None:
        await hasten(target, seqs, now)
        if seqs:
            hurrying.set()
            await failed.wait()

    async with delivering(tmp_path / "a.db", lambda _client: [told]) as inbox:
        hasten = inbox.store.hasten
        monkeypatch.setattr(inbox.store, "hasten", slowly)
        await inbox.receive("first")
        await inbox.until(lambda: len(told.begun) == 1)
        told.begun[0].set_result(unreachable)
        await inbox.until(lambda: len(told.begun) == 2)  # by its own time
        await inbox.receive("second")
        await inbox.until(lambda: len(told.begun) == 3)
        told.begun[2].set_result(OK)
        await hurrying.wait()
        told.begun[1].set_result(unreachable)
        await until_probed(inbox, 2)
        failed.set()
        await inbox.until(lambda: len(told.begun) == 4, 5)
        told.begun[3].set_result(OK)
        await inbox.idle()


async def test_a_file_that_refuses_the_hurrying_up_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    async def refuse_once(target: str, seqs: Sequence[int], now: int) -> None:
        if seqs and not refused:
            refused.extend(seqs)
            raise OSError
        await hasten(target, seqs, now)

    receiver = Receiver()
    try:
        async with delivering(tmp_path / "a.db", posting(receiver.url, retry=RetryPolicy(base=60.0))) as inbox:
            hasten = inbox.store.hasten
            monkeypatch.setattr(inbox.store, "hasten", refuse_once)
            await inbox.receive("first")
            await until_probed(inbox, 1)
            await receiver.start()
            await inbox.receive("second")
            await inbox.until(lambda: len(receiver.acknowledged) == 2, 5)
            assert refused == [1]
    finally:
        await receiver.stop()


def test_what_fails_beside_another_that_comes_through_is_due_at_once() -> None:
    outage = Outage("hook", RetryPolicy(base=60.0))
    first, second = (outage.judge(claimed(seq=seq)) for seq in (1, 2))
    second(Verdict(outcome="ok"))
    assert outage.returning(unwritten=()) == []
    first(Verdict(outcome="unreachable", down=True))
    assert outage.over
    assert outage.returning(unwritten=()) == [1]
    outage.judge(claimed(seq=1))(Verdict(outcome="unreachable", down=True))
    assert outage.returning(unwritten=()) == []


async def test_new_events_do_not_wait_behind_a_backlog_beside_a_source_with_little(tmp_path: Path) -> None:
    async def unhurried(request: Request) -> Answer:
        if request.id == "later":
            return Answer(500)
        await asyncio.sleep(0.01)
        return Answer()

    async with receiving(unhurried) as receiver:
        make = posting(receiver.url, concurrency=4, retry=RetryPolicy(base=60.0))
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("later", source="other")
            await inbox.until(lambda: len(receiver.log) == 1)
            await inbox.store.pause("hook", "to see", wall())
            await inbox.receive(*names(400))
            await inbox.store.resume("hook")
            inbox.drain.wake({"hook"})
            await inbox.until(lambda: len(receiver.log) > 20)
            await inbox.receive("new")
            await inbox.until(lambda: "new" in receiver.acknowledged)
            assert len(receiver.log) < 100


async def test_a_rate_holds_for_a_backlog_too(tmp_path: Path) -> None:
    async with receiving() as receiver:
        began = asyncio.get_running_loop().time()
        async with delivering(tmp_path / "a.db", posting(receiver.url, rate=100.0, concurrency=50)) as inbox:
            await inbox.receive(*names(60))
            await inbox.idle()
        assert asyncio.get_running_loop().time() - began >= (60 - 11) / 100


async def test_a_noisy_source_does_not_keep_a_quiet_one_waiting(tmp_path: Path) -> None:
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url, concurrency=2)) as inbox:
        for start in range(0, 1000, 500):
            await inbox.receive(*(f"n{n}" for n in range(start, start + 500)), source="noisy")
        before = len(receiver.log)
        await inbox.receive("quiet", source="quiet")
        await inbox.idle()
    order = [request.id for request, _ in receiver.log]
    assert order.index("quiet") - before <= 40


@pytest.mark.parametrize("skip", [False, True])
async def test_order_by_key_holds_under_failures_and_a_dead_head_is_held_or_passed(tmp_path: Path, skip: bool) -> None:
    dice = random.Random(3)

    async def fail_at_random(request: Request) -> Answer:
        if request.id in {"k07-02", "k31-00"}:
            return Answer(410)
        return Answer(500 if dice.random() < 0.2 else 200)

    skipping = frozenset({"hook"} if skip else ())
    async with receiving(fail_at_random) as receiver:
        make = posting(receiver.url, concurrency=8)
        async with delivering(tmp_path / "a.db", make, ordered_by="/k", skipping=skipping) as inbox:
            for turn in range(6):
                for key in range(50):
                    await inbox.receive(f"k{key:02d}-{turn:02d}", body=b'{"k":%d}' % key)
            held = "select count(*) from deliveries where state = 'parked'"
            await inbox.until(lambda: len(receiver.acknowledged) >= (298 if skip else 290))
            await inbox.drain.idle()
            assert await inbox.rows(held) == [(0 if skip else 8,)]
            assert await inbox.rows("select count(*) from deliveries where state = 'dead'") == [(2,)]
    acknowledged = [request.id for request, status in receiver.log if status == 200]
    assert len(acknowledged) == len(set(acknowledged)) == (298 if skip else 290)
    for key in range(50):
        mine = [id for id in acknowledged if id.startswith(f"k{key:02d}")]
        assert mine == sorted(mine)
    tried = [request.id for request, _ in receiver.log]
    for first, second in (("k07-02", "k07-03"), ("k31-00", "k31-01")):
        assert (second in tried) is skip
        assert first in tried


async def test_a_quick_target_that_turns_slow_holds_nothing_that_it_has_not_begun(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def slow_down(_request: Request) -> Answer:
        if len(receiver.log) > 300:
            await gate.wait()
        return Answer()

    async with receiving(slow_down) as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        for start in range(0, 1000, 250):
            await inbox.receive(*names(1000)[start : start + 250])
        await inbox.until(lambda: receiver.in_flight == 4)
        running = "select count(*) from deliveries where state = 'running'"
        while await inbox.rows(running) != [(4,)]:  # noqa: ASYNC110  # what it waits for is in the file
            await asyncio.sleep(0.01)
        gate.set()
        await inbox.idle()
        assert await inbox.rows("select max(attempts), sum(failures) from deliveries") == [(1, 0)]
    assert receiver.acknowledged == Counter(names(1000))
