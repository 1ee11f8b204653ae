"""What is claimed in advance: it is bounded in bytes, and goes back when its target is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from drain.delivering import delivering, posting, wall
from drain.receiver import Answer, Request, receiving
from oncebox.model import Settled
from oncebox.store.catch import MOST

pytestmark = pytest.mark.anyio
LARGE = 1 << 20


async def test_nothing_more_starts_once_a_pause_is_committed(tmp_path: Path) -> None:
    came: list[str] = []

    async def behave(request: Request) -> Answer:
        came.append(request.id)
        return Answer()

    async with receiving(behave) as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        for start in range(0, 3000, 500):
            await inbox.receive(*(f"e{n}" for n in range(start, start + 500)))
        await inbox.until(lambda: len(came) > 600)
        await inbox.store.pause("hook", "to see", wall())
        begun = len(came) + 4  # those that hold a slot may be on their way
        assert begun < 2900
        await inbox.until_running(0)
        assert len(came) <= begun
        states = await inbox.rows("select state, attempts, count(*) from deliveries group by 1, 2 order by 1")
        assert states == [("done", 1, len(came)), ("pending", 0, 3000 - len(came))]
        assert inbox.drain.trouble() == []
        await inbox.store.resume("hook")
        await inbox.idle()
        assert sorted(came) == sorted(f"e{n}" for n in range(3000))


async def test_large_bodies_are_not_claimed_by_the_hundred(tmp_path: Path) -> None:
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        for start in range(0, 2000, 500):
            await inbox.receive(*(f"small{n}" for n in range(start, start + 500)))
        for n in range(60):
            await inbox.receive(f"large{n}", body=b"x" * LARGE)
        most = 0
        while await inbox.rows("select 1 from deliveries where state in ('pending', 'running') limit 1"):
            sql = "select total(e.size) from deliveries d join events e on e.seq = d.seq where d.state = 'running'"
            ((held,),) = await inbox.rows(sql)
            most = max(most, held)
        assert LARGE < most < 3 * MOST + 8 * LARGE
        assert len(receiver.log) == 2060


async def test_what_has_ended_holds_no_body_while_its_outcome_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        written, settle_all = asyncio.Event(), inbox.store.settle_all

        async def later(some: Sequence[Settled]) -> Sequence[bool]:
            await written.wait()
            return await settle_all(some)

        monkeypatch.setattr(inbox.store, "settle_all", later)
        try:
            for n in range(20):
                await inbox.receive(f"large{n}", body=b"x" * LARGE)
            attempts = inbox.drain._shared.attempts
            await inbox.until(lambda: len(receiver.log) == 20 and all(one.ended for one in attempts))
            assert len(attempts) == 20
            assert sum(one.claimed.weight for one in attempts) == 0
        finally:
            written.set()
        await inbox.idle()
