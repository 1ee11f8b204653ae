"""Handlers that are slow or hostile, and everybody else."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from threading import Timer

import pytest

from process.attacks import ATTACKING, attack
from process.rig import clean_stop
from process.servers import Serve
from process.slow import delays_nobody, overruns, with_seconds
from process.twins import COUNTING

pytestmark = pytest.mark.process


@pytest.mark.parametrize("target", ["sleeps", "spins_over_rows"])
def test_a_transactional_handler_that_overruns_is_paused_and_leaves_nothing(serve: Serve, target: str) -> None:
    server = serve(handlers=with_seconds(1.1)).start()
    overruns(server, target, patience=6)
    clean_stop(server)


@pytest.mark.alone
def test_sleeping_handlers_of_other_kinds_delay_no_accept(serve: Serve) -> None:
    server = serve(handlers=with_seconds(1.5), server='grace = "6s"').start()
    for type in ("async", "blocking", "staged"):
        delays_nobody(server, type, 100)
    clean_stop(server)


def test_hostile_sql_harms_no_other_event(serve: Serve) -> None:
    server = serve(handlers=ATTACKING).start()
    attack(server)
    assert server.get("/readyz").status == 200
    clean_stop(server)


@pytest.mark.alone
def test_a_program_that_holds_the_file_costs_time_and_nothing_else(serve: Serve) -> None:
    server = serve(handlers=COUNTING).start()
    with contextlib.closing(sqlite3.connect(server.database, isolation_level=None, check_same_thread=False)) as outside:
        assert server.post("before").status == 202
        outside.execute("begin immediate")
        release = Timer(0.7, outside.execute, ("rollback",))
        release.start()
        begin = time.monotonic()
        assert server.post("meanwhile").status == 202
        assert 0.5 < time.monotonic() - begin < 2
        release.join()
    server.until_quiet(5)
    assert " ERROR " not in server.log(), server.log()
    clean_stop(server)
