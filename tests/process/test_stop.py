"""Stops: what is in hand is finished or given back, uncounted, within the grace period."""

from __future__ import annotations

import http.client
import signal
import time
from threading import Thread

import pytest

from process.conftest import Serve
from process.rig import Client, Server, clean_stop, sound, until

pytestmark = pytest.mark.process

WAITING = """
import asyncio
from oncebox import Event, on

@on("demo", concurrency=8)
async def wait(event: Event) -> None:
    with open("begun.txt", "a") as begun:
        begun.write(f"{event.id} {event.attempt}\\n")
    await asyncio.sleep(SECONDS)
    with open("ended.txt", "a") as ended:
        ended.write(event.id + "\\n")
"""
STUBBORN = """
import asyncio, time
from oncebox import Event, on

@on("demo", type="deaf")
async def deaf(event: Event) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@on("demo", type="blocking")
def blocking(event: Event) -> None:
    time.sleep(60)
"""


def send_until_cut_off(server: Server, told: list[str]) -> None:
    with Client(server) as client:
        for number in range(100_000):
            try:
                answer = client.post(f"e{number}")
            except (OSError, http.client.HTTPException):
                return
            if answer.status != 202:
                assert answer.status == 503
                assert "retry-after" in answer.headers
                return
            told.append(f"e{number}")
            time.sleep(0.002)


def test_a_stop_under_load_finishes_what_runs_and_loses_nothing(serve: Serve) -> None:
    server = serve(handlers=WAITING.replace("SECONDS", "1"), server='grace = "6s"').start()
    told: list[str] = []
    sender = Thread(target=send_until_cut_off, args=(server, told))
    sender.start()
    until(lambda: (server.folder / "begun.txt").exists() and len(told) > 50, 10)
    clean_stop(server, within=6)
    sender.join()
    begun = (server.folder / "begun.txt").read_text().splitlines()
    ended = (server.folder / "ended.txt").read_text().splitlines()
    assert sorted(line.split()[0] for line in begun) == sorted(ended)
    assert [id for (id,) in server.rows("select id from v_events order by seq")] == told
    done = server.rows("select e.id, d.attempts from v_deliveries d join v_events e using (seq) where d.state = 'done'")
    assert sorted(done) == sorted((id, 1) for id in ended)
    assert server.rows("select count(*) from v_deliveries where state = 'pending' and attempts > 0") == [(0,)]
    assert server.rows("select count(*) from attempts") == [(0,)]


def test_an_attempt_that_the_grace_period_cuts_off_does_not_count(serve: Serve) -> None:
    server = serve(handlers=WAITING.replace("SECONDS", "30"), server='grace = "1s"').start()
    server.post("slow")
    until((server.folder / "begun.txt").exists, 5)
    clean_stop(server, within=7)
    assert server.rows("select state, attempts, outcome from v_deliveries") == [("pending", 0, None)]
    assert server.rows("select count(*) from attempts") == [(0,)]
    server.start()
    until(lambda: len((server.folder / "begun.txt").read_text().splitlines()) == 2, 5)
    assert (server.folder / "begun.txt").read_text() == "slow 1\nslow 1\n"
    assert "suspect" not in server.log()


def test_a_stop_with_nothing_to_do_takes_a_moment(serve: Serve) -> None:
    server = serve().start()
    with Client(server) as client:
        client.post("e")  # its connection stays open
        begin = time.monotonic()
        clean_stop(server, within=5)
        assert time.monotonic() - begin < 2


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(serve: Serve, second: int) -> None:
    server = serve(handlers=WAITING.replace("SECONDS", "30")).start()
    server.post("slow")
    until((server.folder / "begun.txt").exists, 5)
    server.signal(signal.SIGTERM)
    until(lambda: "stopping" in server.log(), 5)
    begin = time.monotonic()
    server.signal(second)
    assert server.wait(2) == 130
    assert time.monotonic() - begin < 1
    assert server.rows("pragma integrity_check") == [("ok",)]


@pytest.mark.parametrize("type", ["deaf", "blocking"])
def test_a_handler_that_ignores_the_stop_is_left_behind(serve: Serve, type: str) -> None:
    server = serve(handlers=STUBBORN, server='grace = "1s"').start()
    server.post("stubborn", type=type)
    until(lambda: server.states() == {"running": 1}, 5)
    server.signal()
    server.wait(1 + 6)
    assert "Traceback" not in server.log()
    sound(server)
    assert server.states() == {"pending": 1}
    assert server.rows("select count(*) from attempts") == [(0,)]
