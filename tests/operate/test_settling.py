"""Deliveries that wait are taken as made, or as dead, by a person; and what is told of targets that fare badly."""

from __future__ import annotations

from typing import Any

import pytest

from oncebox.condition import Condition
from oncebox.model import Planned
from oncebox.operate import settling
from oncebox.store import settlement
from operate.conftest import NOW, SECOND, arrival, ended
from operate.test_mend import CONDITIONS, LATER, Desk, desk

__all__ = ["desk"]

pytestmark = pytest.mark.anyio

AFTER = "2026-11-30T00:53:25Z"


def keyed(kind: str | None) -> tuple[Planned, ...]:
    return (Planned("shop", kind),)


async def waiting(desk: Desk) -> None:
    """Two keys with three events each, four without a key, one that came later; the first is being made."""
    desk.store.routing.router = lambda a: keyed(a.type if a.type in ("a", "b") else None)
    kinds = ("a", "b", "a", "b", "a", "b", "x", "x", "x", "x")
    await desk.store.accept([arrival(f"e{n}", type=kind) for n, kind in enumerate(kinds)])
    await desk.store.accept([arrival("late", type="x", at=NOW + 30 * SECOND)])


async def states(desk: Desk) -> dict[int, str]:
    rows = await desk.store.read(lambda db: db.execute("select seq, state from v_deliveries order by seq").fetchall())
    return dict(rows)


async def settle(desk: Desk, **more: Any) -> Any:
    return await desk.json("POST", "/api/targets/shop/settle", {"before": AFTER, "as": "done", **more})


async def test_what_was_due_before_is_done_and_what_came_later_waits(desk: Desk) -> None:
    await waiting(desk)
    found = await settle(desk, why="sent by hand")
    assert found == {
        "name": "shop", "as": "done", "before": "2026-11-30T00:53:25.000000Z", "settled": 10, "matched": 10,
        "counted_all": True,
    }  # fmt: skip
    assert await states(desk) == {**dict.fromkeys(range(1, 11), "done"), 11: "pending"}
    assert [one.event.id for one in await desk.store.claim("shop", 50, LATER)] == ["late"]
    [event] = (await desk.json("GET", "/api/events?q=e4"))["events"]
    assert (event["state"], event["deliveries"][0]["error"]) == ("done", "settled as done by boss: sent by hand")
    assert event["processed_at"] is not None
    assert await desk.acts() == [
        ("boss", "deliveries settled",
         "shop: 10 due before 2026-11-30T00:53:25.000000Z as done: settled as done by boss: sent by hand"),
    ]  # fmt: skip
    assert (await settle(desk))["settled"] == 0


async def test_the_totals_agree(desk: Desk) -> None:
    await waiting(desk)
    await settle(desk, **{"as": "dead"})
    by_state = (await desk.json("GET", "/api/stats"))["by_state"]
    assert (by_state["dead"], by_state["pending"], by_state["parked"]) == (10, 1, 0)


async def test_what_runs_is_left_to_end_and_frees_its_key(desk: Desk) -> None:
    await waiting(desk)
    [running] = await desk.store.claim("shop", 1, LATER)
    assert (await settle(desk))["settled"] == 9
    assert await desk.store.settle(ended(running))
    assert set((await states(desk)).values()) == {"done", "pending"}


@pytest.mark.parametrize("step", [1, 2, 3, 7])
async def test_steps_of_any_size_come_to_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(settlement, "STEP", step)
    monkeypatch.setattr(settling, "STEP", step)
    await waiting(desk)
    assert (await settle(desk))["settled"] == 10


async def test_a_dry_run_counts_and_changes_nothing(desk: Desk) -> None:
    await waiting(desk)
    found = await settle(desk, dry_run=True)
    assert (found["matched"], found["settled"]) == (10, 0)
    assert "done" not in (await states(desk)).values()
    assert await desk.acts() == []


async def test_the_sender_does_not_revive_what_a_person_gave_up(desk: Desk) -> None:
    desk.store.routing.router = lambda _: keyed(None)
    await desk.store.accept([arrival("e")])
    await settle(desk, **{"as": "dead"})
    before = await states(desk)
    await desk.store.accept([arrival("e", at=LATER)])
    assert await states(desk) == before == {1: "dead"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "400 bad-request"),
        ({"before": AFTER, "as": "lost"}, 'as: "lost" is none'),
        ({"before": "soon", "as": "done"}, 'before: "soon" is neither'),
        ({"before": AFTER, "as": "done", "why": "x" * 201}, "why: has 201"),
        ({"before": AFTER, "as": "done", "to": "x"}, "unknown field"),
    ],
)
async def test_an_order_that_means_nothing_is_refused(desk: Desk, body: object, why: str) -> None:
    assert why in await desk.refusal("POST", "/api/targets/shop/settle", body)


async def test_only_an_admin_settles_and_only_what_there_is(desk: Desk) -> None:
    body = {"before": AFTER, "as": "done"}
    assert (await desk.refusal("POST", "/api/targets/shop/settle", body, "auditor-token")).startswith("403")
    assert 'did you mean "shop"' in await desk.refusal("POST", "/api/targets/shopp/settle", body)


async def test_a_target_that_nobody_is_any_more_can_be_settled(desk: Desk) -> None:
    desk.store.routing.router = lambda _: (Planned("gone"),)
    await desk.store.accept([arrival("e")])
    assert (await desk.json("POST", "/api/targets/gone/settle", {"before": AFTER, "as": "dead"}))["settled"] == 1


async def test_a_target_that_is_down_says_since_when_and_why(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    down = Condition(
        down_since=NOW, next_probe_at=NOW + SECOND, failed_at=NOW, outcome="unreachable", error="cannot be reached"
    )
    monkeypatch.setitem(CONDITIONS, "shop", down)
    [_, shop] = (await desk.json("GET", "/api/targets"))["targets"]
    assert shop["state"] == "down"
    assert shop["down"] == {"since": "2026-11-30T00:53:20.000000Z", "next_probe_at": "2026-11-30T00:53:21.000000Z"}
    assert shop["last_failure"] == {
        "at": "2026-11-30T00:53:20.000000Z", "outcome": "unreachable", "error": "cannot be reached",
    }  # fmt: skip
    monkeypatch.setitem(CONDITIONS, "shop", Condition(failed_at=NOW, outcome="unreachable"))
    assert (await desk.json("GET", "/api/targets"))["targets"][1]["state"] == "unreachable"
