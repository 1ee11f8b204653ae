"""A clock that is set back makes nothing wait for it to come there again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process.clocked import Clocked
from process.rig import clean_stop, until
from process.shop import SECRET, Shop, opened

pytestmark = pytest.mark.process
NOON = 1_800_000_000
HOURS = 7200


@pytest.fixture
def shop() -> Iterator[Shop]:
    with opened() as shop:
        yield shop


@pytest.mark.parametrize("how", ["while it runs", "while it is down"])
def test_what_waits_for_another_try_is_tried_in_time_all_the_same(tmp_path: Path, shop: Shop, how: str) -> None:
    config = (
        f'[targets.shop]\nurl = "{shop.url}"\nsecret = "plain:{SECRET}"\nretry = {{ base = "2s", factor = 1 }}\n'
        '[[routes]]\nsource = "demo"\nto = "shop"\n'
    )
    server = Clocked(tmp_path / "inbox", at=NOON, config=config)
    shop.status = 500
    try:
        server.start()
        server.post("e1")
        until(lambda: server.rows("select outcome from v_deliveries") == [("error",)], 10)
        shop.status = 200
        if how == "while it is down":
            clean_stop(server)
        server.set_clock(NOON - HOURS)
        if how == "while it is down":
            server.start()
        until(lambda: "brought forward" in server.log(), 10)
        assert shop.acknowledged == {}
        server.set_clock(NOON - HOURS + 3)
        until(lambda: shop.acknowledged == {"e1": 1}, 10)
        server.until_quiet(5)
        clean_stop(server)
    finally:
        server.end()
