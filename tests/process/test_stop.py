"""Stops: what is in hand is finished or given back, uncounted, within the grace period."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time

import pytest

from process.rig import Client, clean_stop, sound, until
from process.servers import Serve
from process.stops import stop_under_load, waiting
from process.twins import COUNTING

pytestmark = pytest.mark.process

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


def test_a_stop_under_load_finishes_what_runs_and_loses_nothing(serve: Serve) -> None:
    server = serve(handlers=waiting(1), server='grace = "6s"').start()
    stop_under_load(server, "e", after=50, within=6)


def test_an_attempt_that_the_grace_period_cuts_off_does_not_count(serve: Serve) -> None:
    server = serve(handlers=waiting(30), server='grace = "1s"').start()
    server.post("slow")
    until((server.folder / "begun.txt").exists, 5)
    clean_stop(server, within=7)
    assert server.rows("select state, attempts, outcome from v_deliveries") == [("pending", 0, None)]
    assert server.rows("select count(*) from attempts") == [(0,)]
    server.start()
    until(lambda: len((server.folder / "begun.txt").read_text().splitlines()) == 2, 5)
    assert (server.folder / "begun.txt").read_text() == "slow 1\nslow 1\n"
    assert "suspect" not in server.log()


@pytest.mark.alone
def test_a_stop_with_nothing_to_do_takes_a_moment(serve: Serve) -> None:
    server = serve().start()
    with Client(server) as client:
        client.post("e")  # its connection stays open
        begin = time.monotonic()
        clean_stop(server, within=5)
        assert time.monotonic() - begin < 2


@pytest.mark.alone
def test_a_second_signal_ends_at_once(serve: Serve) -> None:
    server = serve(handlers=waiting(30)).start()
    server.post("slow")
    until((server.folder / "begun.txt").exists, 5)
    server.signal(signal.SIGTERM)
    until(lambda: "stopping" in server.log(), 5)
    begin = time.monotonic()
    server.signal(signal.SIGINT)
    assert server.wait(2) == 130
    assert time.monotonic() - begin < 1
    assert server.rows("pragma integrity_check") == [("ok",)]


def test_a_stop_close_behind_another_signal_is_one_stop(serve: Serve) -> None:
    server = serve(handlers=waiting(0.3))
    stops = "lambda *_: os.kill(os.getpid(), signal.SIGTERM)"
    server.code = f"import os, signal; signal.signal(signal.SIGUSR1, {stops}); {server.code}"
    server.start()
    server.post("slow")
    until((server.folder / "begun.txt").exists, 5)
    server.signal(signal.SIGUSR1)
    assert server.wait(5) == 0, server.log()
    assert server.states() == {"done": 1}


def test_a_reload_that_comes_as_the_last_one_has_been_obeyed_does_not_cut_a_stop_short(serve: Serve) -> None:
    server = serve()
    ignored = "lambda *how: (os.kill(os.getpid(), signal.SIGHUP), signal.signal(*how))"
    shim = f"types.SimpleNamespace(**{{**vars(signal), 'signal': {ignored}}})"
    server.code = f"import os, signal, types; from oncebox import reload; reload.signal = {shim}; {server.code}"
    clean_stop(server.start())


@pytest.mark.parametrize("type", ["deaf", "blocking"])
def test_a_handler_that_ignores_the_stop_is_left_behind(serve: Serve, type: str) -> None:
    server = serve(handlers=STUBBORN, server='grace = "1s"').start()
    server.post("stubborn", type=type)
    until(lambda: server.states() == {"running": 1}, 5)
    assert server.stop(within=1 + 3) == 0
    assert "Traceback" not in server.log()
    sound(server)
    assert server.states() == {"pending": 1}
    assert server.rows("select count(*) from attempts") == [(0,)]


def test_a_body_that_never_ends_does_not_hold_a_stop_up(serve: Serve) -> None:
    server = serve(server='grace = "2s"').start()
    with server.connect() as half, server.connect() as idle, server.connect() as head:
        half.sendall(b"POST /in/demo HTTP/1.1\r\nHost: [::1]\r\nIdempotency-Key: half\r\nContent-Length: 9\r\n\r\n1234")
        head.sendall(b"POST /in/demo HTTP/1.1\r\nHost: localhost\r\nIdempo")
        assert server.post("whole").status == 202
        clean_stop(server, within=4)
        assert idle.recv(1) == b""
    assert "Traceback" not in server.log(), server.log()
    assert server.rows("select id from v_events") == [("whole",)]


def test_somebody_elses_transaction_does_not_spoil_a_stop(serve: Serve) -> None:
    server = serve(handlers=COUNTING, server='grace = "3s"').start()
    assert [server.post("e").status for _ in range(3)] == [202] * 3
    server.until_quiet(5)
    with contextlib.closing(sqlite3.connect(server.database, isolation_level=None)) as outside:
        outside.execute("begin immediate")
        server.signal()
        until(lambda: "stopping" in server.log(), 5)
        outside.execute("rollback")
        outside.execute("begin")
        outside.execute("select count(*) from events").fetchall()
        assert server.wait(8) == 0
    assert "Traceback" not in server.log(), server.log()
    assert server.rows("select value from meta where name = 'clean'") == [(1,)]
    sound(server)
