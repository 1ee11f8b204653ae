"""What a running drain tells of its targets, and of the events that it has to do with."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from drain.delivering import delivering, posting
from drain.receiver import Answer, Receiver, Request, receiving
from oncebox.condition import Condition
from oncebox.drain.retry import RetryPolicy

pytestmark = pytest.mark.anyio

SLOWLY = RetryPolicy(attempts=12, base=0.2, factor=1.0, ceiling=0.2)


async def test_a_target_that_is_down_says_since_when_and_why_until_it_is_back(tmp_path: Path) -> None:
    receiver, began = Receiver(), time.time_ns() // 1000
    async with delivering(tmp_path / "a.db", posting(receiver.url, retry=SLOWLY)) as inbox:
        assert inbox.drain.conditions() == {"hook": Condition()}
        await inbox.receive(*(f"e{n:02}" for n in range(12)))
        await inbox.until(lambda: inbox.drain.conditions()["hook"].down_since is not None)
        found = inbox.drain.conditions()["hook"]
        assert (found.state, found.outcome) == ("down", "unreachable")
        assert found.error is not None
        assert "cannot be reached" in found.error
        assert found.failed_at is not None
        assert found.down_since is not None
        assert began <= found.failed_at <= found.down_since <= time.time_ns() // 1000
        await inbox.until(lambda: inbox.drain.conditions()["hook"].next_probe_at is not None)
        await receiver.start()
        await inbox.idle()
        assert inbox.drain.conditions() == {"hook": Condition()}
    await receiver.stop()


async def test_a_target_that_answers_badly_is_ready_and_says_what_it_answered(tmp_path: Path) -> None:
    async def refuse(_request: Request) -> Answer:
        return Answer(410)

    async with receiving(refuse) as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        await inbox.receive("e")
        await inbox.idle()
        found = inbox.drain.conditions()["hook"]
        assert (found.state, found.outcome, found.down_since) == ("ready", "refused", None)


async def test_what_begins_and_what_ends_is_noted(tmp_path: Path) -> None:
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        await inbox.receive(*(f"e{n:02}" for n in range(30)))
        await inbox.idle()
        await inbox.drain.idle()
        assert sorted(inbox.drain.recent.since()) == list(range(1, 31))
        assert inbox.drain.recent.mark == 60
