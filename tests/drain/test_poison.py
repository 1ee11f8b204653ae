"""Real deaths: processes that end in the middle of their handlers, and the file they leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drain.conftest import arrival
from drain.test_drain import write
from oncebox import on
from oncebox.route import compile_router
from oncebox.store.sqlite import open_store

pytestmark = [pytest.mark.anyio, pytest.mark.process]

HANDLERS = """
import os
import anyio
from oncebox import on, setup

@setup
def tables(db):
    db.execute("create table if not exists effects (id text primary key) strict")

def die_if_bad(event):
    with open(os.environ["SEEN"], "a") as seen:
        seen.write(f"{event.id} {event.attempt}\\n")
    if event.id == "bad":
        os._exit(9)

@on("demo", type="def")
def transactional(event, db):
    db.execute("insert into effects values (?)", (event.id,))
    die_if_bad(event)

@on("demo", type="thread")
def blocking(event):
    die_if_bad(event)

@on("demo", type="async", concurrency=8)
async def awaited(event):
    await anyio.sleep(0.005)
    die_if_bad(event)
"""

PROCESS = """
import sys
from pathlib import Path
import anyio
from oncebox.clock import wall_clock
from oncebox.drain.drain import Drain, set_up
from oncebox.drain.load import load_handlers
from oncebox.route import compile_router
from oncebox.store.sqlite import open_store

folder, later = Path(sys.argv[1]), int(sys.argv[2]) * 1_000_000

def now():
    return wall_clock() + later

async def main():
    handlers = load_handlers(["lethal"], folder)
    async with open_store(folder / "inbox.db", router=compile_router(handlers.routes)) as store:
        await set_up(store, handlers, now)
        drain = Drain(store, handlers, now=now)
        async with anyio.create_task_group() as group:
            group.start_soon(drain.run)
            await drain.idle()
            await drain.stop()

anyio.run(main)
"""


def live(folder: Path, later: int) -> int:
    """One process on the file until nothing is due or a handler ends it; its exit code."""
    return subprocess.run(
        [sys.executable, "-c", PROCESS, str(folder), str(later)],
        env={"PYTHONPATH": ":".join(sys.path), "SEEN": str(folder / "seen")},
        timeout=20,
        check=False,
    ).returncode


@pytest.mark.parametrize("type", ["def", "thread", "async"])
async def test_a_handler_that_kills_the_process_is_quarantined_and_the_others_finish(type: str, tmp_path: Path) -> None:
    (tmp_path / "lethal.py").write_text(HANDLERS)
    router = compile_router([on("demo", type=type, name=NAMES[type])(write.function).route])
    ids = ["e1", "e2", "e3", "bad", "e4", "e5", "e6"]
    async with open_store(tmp_path / "inbox.db", router=router) as store:
        await store.accept([arrival(id, at=1, type=type) for id in ids])
    # Killed beside others, then alone; then it rests, is killed alone again, and nobody tries it any more.
    assert [live(tmp_path, later) for later in (0, 0, 0, 60, 60)] == [9, 9, 0, 9, 0]
    seen = (tmp_path / "seen").read_text().split("\n")
    assert [line for line in seen if line.startswith("bad")] == ["bad 1", "bad 2", "bad 3"]
    async with open_store(tmp_path / "inbox.db") as store:
        dead = await store.read(
            lambda db: db.execute(
                "select e.id, d.state, d.outcome, d.error from v_deliveries d join events e on e.seq = d.seq "
                "where d.state <> 'done'"
            ).fetchall()
        )
        effects = await store.read(lambda db: db.execute("select id from effects order by 1").fetchall())
    assert [row[:3] for row in dead] == [("bad", "dead", "crashed")]
    assert dead[0][3].startswith("poison")
    assert effects == ([(id,) for id in sorted(ids) if id != "bad"] if type == "def" else [])


NAMES = {"def": "transactional", "thread": "blocking", "async": "awaited"}
