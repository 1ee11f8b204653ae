"""Beside a crowd of senders the drain leaves them the time, and still gets on."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from drain.conftest import OpenBox, arrival
from drain.delivering import QUICK, delivering, wall
from oncebox.drain.handler import on
from oncebox.drain.limits import COURTESY, Limits
from oncebox.drain.pace import BURST
from oncebox.drain.verdict import OK, Verdict
from oncebox.model import Arrival, Claimed, Event
from oncebox.store import Transaction
from store.crowd import sending, until

pytestmark = pytest.mark.anyio

SLOTS = 8


class Instant:
    """A target elsewhere that takes no time."""

    name = "hook"
    concurrency = SLOTS
    timeout = 5.0
    rate = None
    retry = QUICK
    in_process = False
    stoppable = True
    keeps_time = True

    def __init__(self) -> None:
        self.starts: list[float] = []

    async def deliver(self, claimed: Claimed) -> Verdict:
        self.starts.append(time.monotonic())
        return OK

    def most(self, span: float) -> int:
        """The most starts within so many seconds."""
        first, most = 0, 0
        for last, at in enumerate(self.starts):
            while at - self.starts[first] > span:
                first += 1
            most = max(most, last + 1 - first)
        return most


def sent(id: str) -> Arrival:
    return arrival(id, at=wall())


@pytest.mark.alone
async def test_a_lane_starts_no_more_than_its_courtesy_beside_a_crowd(tmp_path: Path) -> None:
    target = Instant()
    async with delivering(tmp_path / "inbox.db", lambda _: [target]) as inbox:
        async with sending(inbox.store, sent) as answered:
            await until(inbox.store.crowded)
            await until(lambda: len(target.starts) > 0)
            begun, since = len(target.starts), time.monotonic()
            await until(lambda: time.monotonic() > since + 1.0)
            took, made = time.monotonic() - since, len(target.starts) - begun
        assert made <= COURTESY * (took + BURST) + SLOTS
        assert made >= 20
        assert len(answered) > made
        await inbox.idle()
        assert target.most(0.1) > COURTESY * 0.1 * 1.2


@pytest.mark.alone
async def test_the_courtesy_limits_what_may_start_only_while_there_is_a_crowd(tmp_path: Path) -> None:
    async with delivering(tmp_path / "inbox.db", lambda _: []) as inbox:
        limits = Limits(None, None, inbox.store.crowded)
        assert (limits.room(time.monotonic()), limits.wait(time.monotonic())) == (math.inf, 0)
        async with sending(inbox.store, sent):
            await until(inbox.store.crowded)
            limits.took(int(COURTESY), time.monotonic())
            assert limits.room(time.monotonic()) <= 0
            assert limits.wait(time.monotonic()) > 0.1
        await until(lambda: not inbox.store.crowded())
        assert (limits.room(time.monotonic()), limits.wait(time.monotonic())) == (math.inf, 0)


async def test_transactional_handlers_get_on_beside_a_crowd(open_box: OpenBox) -> None:
    made: list[float] = []

    @on("demo")
    def handler(_event: Event, _db: Transaction) -> None:
        made.append(time.monotonic())

    async with open_box(handler) as box:
        async with sending(box.store, lambda name: arrival(name, at=box.clock())):
            await until(box.store.crowded)
            since = time.monotonic()
            await until(lambda: time.monotonic() > since + 1.5)
        made = [at - since for at in made]
        assert all(any(start <= at < start + 0.5 for at in made) for start in (0.0, 0.5, 1.0))
