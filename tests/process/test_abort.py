"""Clients that go away."""

from __future__ import annotations

import random

import pytest

from process.aborts import SIGNED, abort, nothing_stays_open, warm_up
from process.rig import clean_stop
from process.servers import Serve
from process.twins import COUNTING

pytestmark = pytest.mark.process


@pytest.mark.alone
def test_clients_that_reset_at_any_moment_leave_nothing_open(serve: Serve) -> None:
    server = serve(handlers=COUNTING, config=SIGNED).start()
    warm_up(server)
    descriptors, threads = server.descriptors(), server.threads()
    abort(server, 200, seed=random.randrange(1 << 30))
    nothing_stays_open(server, descriptors, threads)
    assert server.get("/readyz").status == 200
    server.until_quiet(10)
    assert "Exception in ASGI application" not in server.log()
    clean_stop(server)
    assert server.rows("select count(*) from effects") == server.rows(
        "select count(*) from v_events where source = 'demo'"
    )
    assert server.rows("select count(*) > 0 from v_events where source = 'partner'") == [(1,)]
