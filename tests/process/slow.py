"""Handlers that take their time, and handlers that attack; and how quickly the others are served meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from process.rig import Client, Server, percentile, until

SLOW = """
import asyncio, time
from oncebox import Event, Transaction, on, setup

FAST = {"base": "10ms", "factor": 1, "attempts": 3}
SPIN = "with recursive c (x) as (select 1 union all select x + 1 from c) "

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (id text not null) strict")

def leave_traces(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    db.emit("mail", id=event.id)

@on("mail")
def mail(event: Event, db: Transaction) -> None: ...

@on("demo", type="quick")
def quick(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))

@on("demo", type="sleeps", retry=FAST)
def sleeps(event: Event, db: Transaction) -> None:
    leave_traces(event, db)
    time.sleep(SECONDS)

@on("demo", type="spins_in_a_step", retry=FAST)
def spins_in_a_step(event: Event, db: Transaction) -> None:
    leave_traces(event, db)
    db.execute(SPIN + "select count(*) from c")

@on("demo", type="spins_over_rows", retry=FAST)
def spins_over_rows(event: Event, db: Transaction) -> None:
    leave_traces(event, db)
    db.execute(SPIN + "select x from c where x % 100000 = 0")

@on("demo", type="spins_and_writes", retry=FAST)
def spins_and_writes(event: Event, db: Transaction) -> None:
    leave_traces(event, db)
    db.execute(SPIN + "insert into effects select 'spin' from c where x < 0")

@on("demo", type="spins_and_goes_on", retry=FAST)
def spins_and_goes_on(event: Event, db: Transaction) -> None:
    leave_traces(event, db)
    for _ in range(3):
        try:
            db.execute(SPIN + "select count(*) from c")
        except Exception:
            pass

@on("demo", type="async")
async def waits(event: Event) -> None:
    await asyncio.sleep(SECONDS)

@on("demo", type="blocking")
def blocks(event: Event) -> None:
    time.sleep(SECONDS)

@on("demo", type="staged")
async def staged(event: Event, db) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    await asyncio.sleep(SECONDS)
"""


def with_seconds(seconds: float) -> str:
    return SLOW.replace("SECONDS", str(seconds))


def how_quick(server: Server, count: int, name: str) -> list[float]:
    """How long each of so many accepts took, one after another on one connection."""
    took = []
    with Client(server) as client:
        for number in range(count):
            begin = time.monotonic()
            assert client.post(f"{name}-{number}", type="quick").status == 202
            took.append(time.monotonic() - begin)
    return took


def overruns(server: Server, target: str, *, patience: float) -> None:
    """Three overruns of one event: each fails and leaves nothing, and the target is paused and says why."""
    assert server.post(f"the-{target}", type=target).status == 202
    until(lambda: server.rows("select 1 from paused where target = ?", target), patience, "paused")
    assert percentile(how_quick(server, 50, f"after-{target}"), 0.99) < 1
    (why,) = server.rows("select why from paused where target = ?", target)
    assert "1 s" in why[0]
    outcomes = server.rows("select number, outcome from attempts where target = ? order by 1", target)
    assert outcomes == [(1, "timeout"), (2, "timeout"), (3, "timeout")]
    assert server.rows("select count(*) from effects where id in (?, 'spin')", f"the-{target}") == [(0,)]
    assert server.rows("select count(*) from v_events where source = 'mail'") == [(0,)]
    assert f"alert=paused target={target}" in server.log()


def delays_nobody(server: Server, type: str, count: int) -> None:
    """While handlers of this kind sleep, accepts go on as if nothing was."""
    for number in range(4):
        assert server.post(f"sleeper-{type}-{number}", type=type).status == 202
    running: Callable[[], bool] = lambda: server.states().get("running", 0) >= 4  # noqa: E731
    until(running, 2, f"four {type} handlers run")
    took = how_quick(server, count, f"beside-{type}")
    assert running(), "the handlers ended before the accepts were measured"
    assert percentile(took, 0.99) < 0.2, sorted(took)[-5:]
