"""Reruns by a real server: killed in the middle they go on exactly, and live events do not wait for them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from oncebox.model import Planned
from oncebox.store.sqlite import open_store
from process.rig import CODE, TOKEN, Client, Fresh, Server, clean_stop, environment, percentile, until
from process.servers import Serve
from process.shop import hook, opened
from store.conftest import arrival

HANDLERS = """
from oncebox import on, setup

@setup
def tables(db):
    db.execute("create table if not exists ran (id text, run integer, primary key (id, run)) strict")

@on("demo")
def record(event, db):
    db.execute("insert into ran values (?, ?)", (event.id, event.run))
"""


async def write_events(database: Path, count: int, target: str = "record") -> None:
    """History that waits for its first run."""
    async with open_store(database, router=lambda _: (Planned(target),)) as store:
        for first in range(0, count, 500):
            await store.accept([arrival(f"evt_{n}") for n in range(first, min(first + 500, count))])


def order(server: Server, method: str, path: str, body: object = None) -> Any:
    with Client(server) as client:
        sent = b"" if body is None else json.dumps(body).encode()
        answer = client.request(method, path, sent, {"Authorization": f"Bearer {TOKEN}"})
    assert answer.status < 300, answer
    return json.loads(answer.body)


def history(server: Server, count: int) -> None:
    """A server with so many events done."""
    anyio.run(write_events, server.database, count)
    server.start()
    server.until_quiet(60)
    assert server.states() == {"done": count}


def ended(server: Server) -> bool:
    return bool(server.rows("select state = 'done' from reruns")[0][0])


def queued(server: Server) -> int:
    return int(server.rows("select queued from reruns")[0][0])


def test_a_rerun_that_is_killed_in_the_middle_goes_on_exactly(serve: Serve) -> None:
    server = serve(handlers=HANDLERS)
    history(server, 6000)
    order(server, "POST", "/api/reruns", {"source": "demo"})
    for share in (0.2, 0.5):
        until(lambda goal=6000 * share: queued(server) >= goal, 30, "part of it is queued")  # type: ignore[misc]
        server.kill()
        assert 0 < server.rows("select done from reruns")[0][0] < 6000
        server.start()
    until(lambda: ended(server), 60, "the rerun has ended")
    assert server.rows("select state, matched, queued, skipped, done, dead from reruns") == [
        ("done", 6000, 6000, 0, 6000, 0)
    ]
    assert server.rows("select run, count(*) from v_deliveries group by 1") == [(2, 6000)]
    assert server.rows("select run, count(*) from ran group by 1 order by 1") == [(1, 6000), (2, 6000)]
    clean_stop(server)


@pytest.mark.alone
def test_live_events_do_not_wait_for_a_rerun_at_full_rate(serve: Serve) -> None:
    server = serve(handlers=HANDLERS)
    history(server, 10_000)
    begin = time.monotonic()
    order(server, "POST", "/api/reruns", {"source": "demo"})
    waited: list[float] = []
    with Client(server) as client:
        while not ended(server):
            client.post(f"live_{len(waited)}")
            waited.append(0.0)
            time.sleep(0.005)
    took = time.monotonic() - begin
    server.until_quiet(10)
    delays = [
        ms / 1000
        for (ms,) in server.rows(
            "select d.processed_at - e.received_at from v_deliveries d join events e on e.seq = d.seq "
            "where e.id like 'live%'"
        )
    ]
    sys.stdout.write(
        f"10,000 events rerun at {10_000 / took:.0f}/s; {len(delays)} live events, ms from receipt to done: "
        f"p50 {percentile(delays, 0.5):.1f} p99 {percentile(delays, 0.99):.1f} max {max(delays):.1f}\n"
    )
    assert len(delays) == len(waited) > 10
    assert percentile(delays, 0.95) < 50
    clean_stop(server)


@pytest.mark.alone
def test_live_events_do_not_wait_for_a_rerun_at_a_slow_url(serve: Serve) -> None:
    with opened() as shop:
        server = serve(config=hook(shop))
        anyio.run(write_events, server.database, 500, "shop")
        server.start()
        server.until_quiet(30)
        shop.pause = 0.025
        order(server, "POST", "/api/reruns", {"source": "demo"})
        sent: dict[str, float] = {}
        with Client(server) as client:
            while not ended(server) and len(sent) < 50:
                client.post(f"live_{len(sent)}")
                sent[f"live_{len(sent)}"] = time.time()
                time.sleep(0.04)
        assert not ended(server)
        until(lambda: sent.keys() <= shop.came.keys(), 10)
        delays = [(shop.came[id] - at) * 1000 for id, at in sent.items()]
        sys.stdout.write(f"ms to a URL beside a rerun: p50 {percentile(delays, 0.5):.1f} max {max(delays):.1f}\n")
        assert percentile(delays, 0.9) < 50
        server.kill()


REVIVED = """
from oncebox import Dead, on

@on("demo")
def fragile(event, db):
    if event.run == 1:
        raise Dead("not today")
"""


def test_a_sender_that_repeats_a_dead_event_revives_it_unless_its_source_keeps_it(serve: Serve) -> None:
    for kept, states in (("", {"done": 1}), ('on_replay_of_dead = "keep"', {"dead": 1})):
        server = serve(kept[-5:-1] or "revive", handlers=REVIVED, config=kept)
        server.start()
        first = server.post("evt_1")
        until(lambda server=server: server.states() == {"dead": 1}, 10, "it is dead")  # type: ignore[misc]
        again = server.post("evt_1")
        assert (again.status, again.body, again.replayed) == (first.status, first.body, True)
        until(lambda server=server: server.rows("select replays from replays"), 10, "it is counted")  # type: ignore[misc]
        server.until_quiet(10)
        assert server.states() == states
        clean_stop(server)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Fresh]:
    """A running server with a hundred events that are done."""
    server = Fresh(tmp_path / "a", handlers=HANDLERS)
    anyio.run(write_events, server.database, 100)
    try:
        server.start()
        server.until_quiet(10)
        yield server
    finally:
        server.end()


def test_who_waits_for_a_rerun_waits_through_a_restart(filled: Fresh) -> None:
    with waiting(filled, "rerun", "--all", "--rate", "60", "--wait") as command:
        until(lambda: bool(filled.rows("select 1 from reruns where queued > 0")), 10)
        filled.stop()
        assert command.stderr is not None
        assert "rerun 1 goes on when it is back" in command.stderr.readline()
        filled.start()
        assert command.communicate(timeout=20) == ("rerun 1 done: 100 done, 0 dead of 100\n", "")
        assert command.returncode == 0


def test_who_stops_to_wait_for_a_rerun_is_told_its_number(filled: Fresh) -> None:
    with waiting(filled, "rerun", "--all", "--rate", "0.1", "--wait") as command:
        until(lambda: bool(filled.rows("select 1 from reruns where queued > 0")), 10)
        time.sleep(0.5)
        command.send_signal(signal.SIGINT)
        assert command.communicate(timeout=10)[1].startswith("rerun 1 goes on; to end it: oncebox reruns cancel 1\n")
        assert command.returncode == 130


def waiting(server: Fresh, *args: str) -> subprocess.Popen[str]:
    """A command of its own beside the server."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *args],
        cwd=server.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
