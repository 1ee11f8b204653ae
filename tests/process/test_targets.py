"""Targets of the configuration, delivered to by a real server that is killed meanwhile."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from process.rig import Client, clean_stop, percentile, refused, until
from process.servers import Serve
from process.shop import RETRY, Shop, hook, opened

pytestmark = pytest.mark.process


@pytest.fixture
def shop() -> Iterator[Shop]:
    with opened() as shop:
        yield shop


def test_a_kill_at_any_moment_loses_nothing_and_repeats_only_what_was_in_flight(serve: Serve, shop: Shop) -> None:
    server = serve(config=hook(shop))
    dice, kills, count = random.Random(11), 5, 0
    shop.pause = 0.002
    for _ in range(kills):
        server.start()
        with Client(server) as client:
            for _ in range(60):
                assert client.post(f"e{count}", b'{"n":1}').status == 202
                count += 1
        shop.until(count - dice.randrange(20, 60))
        server.kill()
    server.start()
    server.until_quiet(20)
    assert server.states() == {"done": count}
    assert set(shop.acknowledged) == {f"e{n}" for n in range(count)}
    # Four in flight, and those acknowledged in the moment before their outcomes are written together.
    assert sum(shop.acknowledged.values()) - count <= 3 * 4 * kills
    assert shop.forged == 0
    clean_stop(server)


@pytest.mark.alone
def test_a_source_whose_events_hang_at_a_url_delays_no_other_there(serve: Serve, shop: Shop) -> None:
    other = "[sources.other]\nid = 'header:Idempotency-Key'\nunsigned = true\n"
    config = hook(shop, f"{other}[[routes]]\nsource = 'other'\nto = 'shop'\n")
    server = serve(config=config).start()
    shop.hangs = ("hang",)
    waited: list[float] = []
    with Client(server) as client:
        for n in range(40):
            client.post(f"hang{n}", source="other")
        for n in range(60):
            client.post(f"good{n}")
            sent = time.time()
            until(lambda n=n: f"good{n}" in shop.came, 10)  # type: ignore[misc]
            waited.append((shop.came[f"good{n}"] - sent) * 1000)
    assert percentile(waited, 0.5) < 50
    assert percentile(waited, 0.9) < 50
    server.kill()


def test_a_kill_during_an_outage_changes_nothing(serve: Serve, shop: Shop) -> None:
    server = serve(config=hook(shop)).start()
    shop.status = 503
    with Client(server) as client:
        for n in range(50):
            client.post(f"e{n}", b'{"n":1}')
    until(lambda: "target is down" in server.log(), 10)
    server.kill()
    server.start()
    until(lambda: "target is down" in server.log(), 10)
    shop.status = 200
    server.until_quiet(20)
    assert shop.acknowledged == Counter(f"e{n}" for n in range(50))
    clean_stop(server)


def test_a_command_does_its_part_beside_a_url(serve: Serve, shop: Shop, tmp_path: Path) -> None:
    more = (
        f'[targets.tool]\ncommand = ["sh", "-c", "cat > $ONCEBOX_ID.body; ls /proc/self/fd > $ONCEBOX_ID.fds"]\n'
        f'{RETRY}\n[[routes]]\nsource = "demo"\ntype = "ship.*"\nto = ["tool", "shop"]\n'
    )
    server = serve(config=hook(shop, more)).start()
    server.post("e1", b'{"ship":1}', type="ship.now")
    server.post("e2", b"{}", type="keep")
    server.until_quiet(10)
    assert server.states() == {"done": 3}
    assert (server.folder / "e1.body").read_bytes() == b'{"ship":1}'
    assert set((server.folder / "e1.fds").read_text().split()) <= {"0", "1", "2", "3"}
    assert not (server.folder / "e2.body").exists()
    clean_stop(server)


@pytest.mark.parametrize("by", ["restart", "reload"])
def test_a_dead_head_is_passed_as_soon_as_its_route_says_skip(serve: Serve, shop: Shop, by: str) -> None:
    ordered = 'ordered_by = "/k"\n'
    server = serve(config=hook(shop, ordered)).start()
    shop.status = 410
    server.post("head", b'{"k":1}')
    until(lambda: server.states() == {"dead": 1}, 10)
    shop.status = 200
    server.post("next", b'{"k":1}')
    assert server.states() == {"dead": 1, "parked": 1}
    config = server.folder / "litestar.toml"
    config.write_text(config.read_text().replace(ordered, ordered + 'on_dead = "skip"\n'))
    if by == "reload":
        server.signal(signal.SIGHUP)
    else:
        clean_stop(server)
        server.start()
    until(lambda: server.states() == {"dead": 1, "done": 1}, 10)
    assert shop.order == ["next"]
    clean_stop(server)


def test_a_reload_sends_new_events_elsewhere_and_says_that_targets_need_a_restart(serve: Serve, shop: Shop) -> None:
    server = serve(config=hook(shop)).start()
    config = server.folder / "litestar.toml"
    config.write_text(
        config.read_text().replace('source = "demo"\nto', 'source = "demo"\ntype = "wanted"\nto')
        + "[targets.b]\nurl='http://127.0.0.1:9'\n"
    )
    server.signal(signal.SIGHUP)
    until(lambda: "reloaded" in server.log(), 10)
    assert "read at a restart only: targets" in server.log()
    server.post("no", type="other")
    server.post("yes", type="wanted", body=b"{}")
    until(lambda: server.states() == {"done": 1}, 10)
    assert shop.acknowledged == {"yes": 1}
    clean_stop(server)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            '[targets.t]\nurl = "http://127.0.0.1:9"\nsecret = "plain:not a key"',
            "targets.t.secret: plain:… is no Standard",
        ),
        (
            '[targets.t]\ncommand = ["true"]\nsecret = "plain:abcd"',
            "targets.t.secret: it signs what is posted to a url",
        ),
        (
            (
                '[targets.t]\ncommand = ["true"]\n[[routes]]\nsource = "demo"\nto = "t"\nordered_by = "/a"\n'
                '[[routes]]\nsource = "x"\nto = "t"\nordered_by = "/a"\non_dead = "skip"'
            ),
            'target "t" is told to skip a dead event and to hold for it',
        ),
    ],
)
def test_targets_that_cannot_work_stop_the_start(serve: Serve, config: str, why: str) -> None:
    ended = refused(serve(config=config).folder)
    assert ended.code == 2
    assert why in ended.said
