"""The same event twice, one after another and all at once."""

from __future__ import annotations

import pytest

from process.rig import clean_stop
from process.servers import Serve
from process.twins import COUNTING, twin_rounds

pytestmark = pytest.mark.process


def test_the_same_post_twice_gets_the_same_bytes_and_the_second_says_so(serve: Serve) -> None:
    server = serve().start()
    first, second = (server.post("order-1", b'{"hello":"world"}') for _ in range(2))
    assert first.status == second.status == 202
    assert first.body == second.body
    assert b'"id":"order-1"' in first.body
    assert first.headers["content-type"] == "application/json"
    assert not first.replayed
    assert second.replayed
    assert {k: v for k, v in second.headers.items() if k not in ("date", "idempotent-replayed")} == {
        k: v for k, v in first.headers.items() if k != "date"
    }
    assert server.get("/healthz").status == server.get("/readyz").status == 200
    clean_stop(server)
    assert server.rows("select replays from replays") == [(1,)]


def test_sixteen_twins_at_one_barrier_are_one_event_with_one_effect(serve: Serve) -> None:
    server = serve(handlers=COUNTING).start()
    twin_rounds(server, rounds=20, restart_every=7)
    clean_stop(server)
