"""The clock: small steps back are smoothed, larger ones noticed."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest

from oncebox import watch
from oncebox.clock import Clock, Setbacks
from oncebox.drain.drain import Drain
from oncebox.drain.load import Handlers
from oncebox.errors import StorageFull
from oncebox.model import Planned
from oncebox.store.sqlite import open_store
from oncebox.watch import Watch
from store.conftest import NOW, arrival, ended, rows

SECOND = 1_000_000


class Times:
    """Two clocks that are set by hand."""

    def __init__(self) -> None:
        self.wall = NOW
        self.steady = 7 * SECOND

    def set(self, wall: int, steady: int) -> None:
        self.wall += wall * SECOND
        self.steady += steady * SECOND


def test_a_step_back_of_less_than_a_second_stands_still() -> None:
    times = iter([NOW, NOW - SECOND // 2, NOW + 1, NOW - SECOND])
    clock = Clock(lambda: next(times))
    assert [clock() for _ in range(4)] == [NOW, NOW, NOW + 1, NOW - SECOND]


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([(1, 1), (60, 60)], [0, 0]),
        ([(-3600, 1), (1, 1)], [3601 * SECOND, 0]),
        ([(3600, 1), (-3600, 1)], [0, 3601 * SECOND]),
        ([(0, 1), (0, 1)], [0, 0]),
    ],
)
def test_a_setback_is_told_once_and_a_step_forward_is_none(steps: list[tuple[int, int]], found: list[int]) -> None:
    times = Times()
    setbacks = Setbacks(lambda: times.wall, lambda: times.steady)
    told = []
    for wall, steady in steps:
        times.set(wall, steady)
        told.append(setbacks.since_last())
    assert told == found


@pytest.mark.anyio
async def test_a_setback_that_the_file_refuses_to_hear_of_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_work: object) -> None:
        raise StorageFull("the disk is full")

    times = Times()
    monkeypatch.setattr(watch, "EVERY", 0.01)
    async with open_store(tmp_path / "inbox.db", router=lambda _: (Planned("handler"),)) as store:
        await store.accept([arrival("evt_1", at=NOW)])
        [one] = await store.claim("handler", 1, NOW)
        await store.settle(ended(one, "pending", due=NOW + 5 * SECOND))
        async with anyio.create_task_group() as group:
            with monkeypatch.context() as full, caplog.at_level(logging.WARNING):
                full.setattr(store, "change", refuse)
                group.start_soon(Watch(store, Drain(store, Handlers()), lambda: times.wall).run)
                await anyio.sleep(0.05)
                times.wall -= 3600 * SECOND
                with anyio.fail_after(5):
                    while "still waits: the disk is full" not in caplog.text:  # noqa: ASYNC110  # it is said by another
                        await anyio.sleep(0.01)
            with anyio.fail_after(5):
                while "brought forward: 1" not in caplog.text:  # noqa: ASYNC110  # as above
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        ((due,),) = await rows(store, "select due from v_deliveries")
        assert times.wall < due <= times.wall + 6 * SECOND
