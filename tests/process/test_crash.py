"""What a kill at any moment leaves behind."""

from __future__ import annotations

import random

import pytest

from process.crashes import DEADLY, LOADED, kill_rounds, quarantine
from process.rig import clean_stop
from process.servers import Serve

CRASHED = "select count(*) from attempts join events using (seq) where outcome = 'crashed' and id = ?"

pytestmark = pytest.mark.process


def test_no_kill_loses_or_doubles_what_was_acknowledged(serve: Serve) -> None:
    kill_rounds(serve(handlers=LOADED), rounds=3, longest=0.6, seed=random.randrange(1 << 30))


def test_an_event_that_kills_the_process_is_quarantined_by_its_third_death(serve: Serve) -> None:
    server = serve(handlers=DEADLY)
    deaths = quarantine(server, good=200, within=40)
    assert 2 <= deaths <= 3
    assert server.rows("select count(*), count(distinct id) from effects") == [(200, 200)]
    assert server.rows(CRASHED, "deadly-0") == [(deaths,)]
    assert server.get("/readyz").status == 200
    clean_stop(server)
