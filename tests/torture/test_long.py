"""The process tests again, for as long as it takes: `scripts/test -m torture`."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from threading import Event

import pytest

from process.aborts import SIGNED, abort, nothing_stays_open, warm_up
from process.attacks import ATTACKING, attack
from process.crashes import DEADLY, DEADLY_ASYNC, LOADED, kill_rounds, quarantine
from process.rig import Client, at_once, clean_stop, until
from process.servers import Serve
from process.slow import delays_nobody, overruns, with_seconds
from process.stops import lines, stop_under_load, waiting
from process.twins import COUNTING, twin_rounds

pytestmark = [pytest.mark.process, pytest.mark.torture]


@pytest.fixture
def seed() -> int:
    """Different each time; pytest-randomly prints what it was made from."""
    return random.randrange(1 << 30)


def test_two_hundred_rounds_of_twins(serve: Serve) -> None:
    server = serve(handlers=COUNTING).start()
    twin_rounds(server, rounds=200, restart_every=9)
    clean_stop(server)


def test_fifty_kills_under_load(serve: Serve, seed: int) -> None:
    kill_rounds(serve(handlers=LOADED), rounds=50, longest=2, seed=seed, suspects_too=True)


@pytest.mark.parametrize("handlers", [DEADLY, DEADLY_ASYNC], ids=["transactional", "async"])
@pytest.mark.parametrize("deadly", [1, 3])
def test_deadly_events_among_a_thousand_good_ones(serve: Serve, handlers: str, deadly: int) -> None:
    server = serve(handlers=handlers)
    # One death in company, then at most three alone; another's death in company may start the count again, once each.
    assert quarantine(server, good=1000, within=120, deadly=deadly) <= 4 * deadly * deadly
    clean_stop(server)


def test_two_thousand_aborts(serve: Serve, seed: int) -> None:
    server = serve(handlers=COUNTING, config=SIGNED).start()
    warm_up(server)
    descriptors, threads = server.descriptors(), server.threads()
    abort(server, 2000, seed=seed)
    nothing_stays_open(server, descriptors, threads)
    server.until_quiet(30)
    assert "Exception in ASGI application" not in server.log()
    clean_stop(server)
    assert server.rows("select count(*) from effects") == server.rows(
        "select count(*) from v_events where source = 'demo'"
    )
    assert server.rows("select count(*) > 0 from v_events where source = 'partner'") == [(1,)]


@pytest.mark.parametrize(
    "target", ["sleeps", "spins_in_a_step", "spins_over_rows", "spins_and_writes", "spins_and_goes_on"]
)
def test_transactional_handlers_that_hold_the_writer(serve: Serve, target: str) -> None:
    server = serve(handlers=with_seconds(10)).start()
    overruns(server, target, patience=45)
    clean_stop(server)


def test_a_transactional_handler_that_holds_the_writer_for_good_ends_the_process(serve: Serve) -> None:
    server = serve(handlers=with_seconds(600)).start()
    assert server.post("for ever", type="sleeps").status == 202
    assert server.wait(40) == 70
    assert "time.sleep(600)" in server.log()
    assert "target=sleeps" in server.log()
    server.start()
    until(lambda: "suspect runs alone target=sleeps" in server.log(), 5)


@pytest.mark.parametrize("type", ["async", "blocking", "staged"])
def test_handlers_that_sleep_ten_seconds_beside_a_stream_of_accepts(serve: Serve, type: str) -> None:
    server = serve(handlers=with_seconds(10)).start()
    delays_nobody(server, type, 2000)
    clean_stop(server, within=25)


def test_hostile_sql_again_and_again(serve: Serve) -> None:
    for number in range(5):
        server = serve(f"inbox-{number}", handlers=ATTACKING).start()
        attack(server)
        clean_stop(server)


def test_twenty_stops_under_load(serve: Serve, seed: int) -> None:
    server, moments = serve(handlers=waiting(2), server='grace = "8s"'), random.Random(seed)
    for number in range(20):
        server.start()
        before = len(lines(server.folder / "begun.txt"))
        stop_under_load(server, f"round{number}", after=moments.randint(1, 200), within=8)
        assert len(lines(server.folder / "begun.txt")) > before


def test_a_program_that_holds_the_file_again_and_again_costs_time_but_no_event(serve: Serve) -> None:
    server = serve(handlers=COUNTING).start()
    over = Event()
    with contextlib.closing(
        sqlite3.connect(server.database, isolation_level=None, timeout=10, check_same_thread=False)
    ) as outside:

        def hold() -> None:
            for _ in range(5):
                outside.execute("begin immediate")
                time.sleep(2)
                outside.execute("commit")
                time.sleep(0.1)
            over.set()

        def send() -> float:
            slowest, number = 0.0, 0
            with Client(server) as client:
                while not over.is_set():
                    number, begin = number + 1, time.monotonic()
                    assert client.post(f"e{number}").status == 202
                    slowest = max(slowest, time.monotonic() - begin)
            return slowest

        slowest = at_once([hold, send])[1]
    assert 1 < slowest < 4
    server.until_quiet(30)
    assert " ERROR " not in server.log(), server.log()
    clean_stop(server)
