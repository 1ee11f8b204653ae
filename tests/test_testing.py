"""`oncebox.testing`: what people who test their handlers can count on."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from oncebox.errors import ConfigError, HandlerError, Rejected
from oncebox.testing import Inbox

AT = datetime(2026, 12, 2, 12, tzinfo=UTC)
NAMES = (f"shop_{number}" for number in count())
SHOP = """
from oncebox import Dead, Retry, on, setup

outside = []

@setup
def tables(db):
    db.execute("create table if not exists payments (invoice text primary key, cents integer not null) strict")
    db.execute("create table if not exists runs (id text, run integer) strict")

@on("stripe", type="invoice.paid")
def record_payment(event, db):
    invoice = event.json()["data"]["object"]
    db.execute("insert into payments values (?, ?)", (invoice["id"], invoice["amount_paid"]))
    db.emit("mail", id=f"receipt-{invoice['id']}", type="receipt", body={"to": invoice["customer_email"]})

@on("mail")
async def send_mail(event):
    outside.append((event.id, event.attempt))

@on("fragile")
def fragile(event, db):
    db.execute("insert into runs values (?, ?)", (event.id, event.run))
    if event.json().get("fails", 0) >= event.attempt:
        raise ValueError("not yet")

@on("partner", type="order.*")
def blocking(event):
    outside.append((event.id, event.type))
"""
INVOICE = {"id": "in_1", "amount_paid": 4200, "customer_email": "a@example.com"}
PAID = {"id": "evt_1", "type": "invoice.paid", "data": {"object": INVOICE}}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module of handlers in the folder that the test runs in."""
    name = next(NAMES)
    (tmp_path / f"{name}.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


def outside(shop: str) -> list[object]:
    found: list[object] = sys.modules[shop].outside
    return found


def test_a_payment_goes_through_once_with_all_that_follows_from_it(shop: str) -> None:
    with Inbox(handlers=shop) as inbox:
        event = inbox.receive("stripe", PAID)
        assert inbox.receive("stripe", PAID) == event
        inbox.drain()
        assert inbox.rows("select * from payments") == [("in_1", 4200)]
        assert [(one.id, one.type, one.parent) for one in inbox.events("mail")] == [
            ("receipt-in_1", "receipt", event.seq)
        ]
        assert outside(shop) == [("receipt-in_1", 1)]
        assert inbox.delivery(event, "record_payment").state == "done"


def test_nothing_moves_until_it_is_told_to(shop: str) -> None:
    with Inbox(handlers=shop, at=AT) as inbox:
        event = inbox.receive("fragile", {"id": "a", "fails": 1})
        time.sleep(0.05)
        assert inbox.delivery(event, "fragile").state == "pending"
        assert event.received_at == AT
        inbox.drain()
        failed = inbox.delivery(event, "fragile")
        assert (failed.state, failed.attempts, failed.outcome) == ("pending", 1, "error")
        assert "ValueError: not yet" in (failed.error or "")
        assert failed.due == AT + timedelta(seconds=5)
        inbox.drain()
        assert inbox.delivery(event, "fragile").attempts == 1
        inbox.advance("5s")
        inbox.drain()
        done = inbox.delivery(event, "fragile")
        assert (done.state, done.attempts, done.due) == ("done", 2, None)
        assert inbox.rows("select * from runs") == [("a", 1)]


def test_a_rerun_is_a_second_run(shop: str) -> None:
    with Inbox(handlers=shop) as inbox:
        event = inbox.receive("fragile", {"id": "a"})
        with pytest.raises(Rejected, match="fragile is pending"):
            inbox.rerun(event)
        inbox.drain()
        inbox.rerun(event)
        inbox.drain()
        assert inbox.rows("select * from runs") == [("a", 1), ("a", 2)]
        assert inbox.delivery(event, "fragile").run == 2


def test_a_rerun_that_fails_ends_the_drain_and_waits_for_its_time(shop: str) -> None:
    with Inbox(handlers=shop) as inbox:
        event = inbox.receive("fragile", {"id": "a"})
        inbox.drain()
        inbox.receive("partner", {"id": "b", "type": "order.paid"})
        inbox.rerun(event, to=["fragile"])
        inbox.drain()
        assert inbox.delivery(event, "fragile").state == "done"


def test_a_crash_undoes_what_is_in_the_file_and_nothing_else(shop: str) -> None:
    with Inbox(handlers=shop) as inbox:
        paid = inbox.receive("stripe", PAID)
        sent = inbox.receive("mail", "hello", id="m1")
        inbox.crash()
        assert inbox.rows("select * from payments") == []
        assert [one.id for one in inbox.events()] == ["evt_1", "m1"]
        assert outside(shop) == [("m1", 1)]
        assert [inbox.delivery(*one).state for one in ((paid, "record_payment"), (sent, "send_mail"))] == [
            "pending"
        ] * 2
        inbox.drain()
        assert inbox.rows("select * from payments") == [("in_1", 4200)]
        assert sorted(map(str, outside(shop))) == ["('m1', 1)", "('m1', 2)", "('receipt-in_1', 1)"]


def test_what_kills_the_process_again_and_again_is_dead_by_the_third_time(shop: str) -> None:
    with Inbox(handlers=shop) as inbox:
        event = inbox.receive("mail", "hello", id="m1")
        for state in ("pending", "pending", "dead"):
            inbox.crash()
            assert inbox.delivery(event, "send_mail").state == state
            inbox.advance("5s")
        assert inbox.delivery(event, "send_mail").outcome == "crashed"
        assert len(outside(shop)) == 3


def test_a_source_is_received_by_the_preset_of_its_name_or_freely(shop: str) -> None:
    with Inbox(handlers=shop) as inbox:
        pushed = inbox.receive("github", {"ref": "x"}, headers={"X-GitHub-Delivery": "d-1", "X-GitHub-Event": "push"})
        assert (pushed.id, pushed.type, pushed.json()) == ("d-1", "push", {"ref": "x"})
        order = inbox.receive("partner", b"<order/>", id="o 1", type="order.paid", headers={"Content-Type": "text/xml"})
        assert (order.id, order.type, order.body, order.content_type) == ("o 1", "order.paid", b"<order/>", "text/xml")
        inbox.drain()
        assert outside(shop) == [("o 1", "order.paid")]
        assert inbox.receive("partner", "no id").id != inbox.receive("partner", "no id").id


def test_a_configuration_says_all_but_the_file(tmp_path: Path, shop: str) -> None:
    (tmp_path / "litestar.toml").write_text(
        f"""
        handlers = ["{shop}"]
        [store]
        path = "live.db"
        [sources.gh]
        preset = "github"
        secrets = ["plain:0123456789abcdef"]
        [sources.batch]
        unsigned = true
        batch = "array"
        id = "body:/id"
        [targets.log]
        command = ["sh", "-c", "cat >> log.txt"]
        [[routes]]
        source = "gh"
        to = "log"
        """
    )
    with Inbox(config="litestar.toml") as inbox:
        inbox.receive("gh", {"ref": "x"}, headers={"X-GitHub-Delivery": "d-1", "X-GitHub-Event": "push"})
        assert inbox.receive("batch", [{"id": "a"}, {"id": "b"}]).id == "a"
        with pytest.raises(Rejected, match=r"(?i)x-github-delivery"):
            inbox.receive("gh", {"ref": "x"})
        inbox.drain()
        assert [one.id for one in inbox.events("batch")] == ["a", "b"]
    assert json.loads((tmp_path / "log.txt").read_text()) == {"ref": "x"}
    assert not (tmp_path / "live.db").exists()


def test_what_does_not_end_is_said_and_ends_the_test(tmp_path: Path, shop: str) -> None:
    (tmp_path / f"{shop}.py").write_text(
        "import anyio\nfrom oncebox import on\n@on('slow')\nasync def slow(event):\n    await anyio.sleep(60)\n"
    )
    begin = time.monotonic()
    with Inbox(handlers=shop) as inbox:
        inbox.receive("slow", {"id": "a"})
        with pytest.raises(TimeoutError, match=r"after 0\.2 s"):
            inbox.drain(within=0.2)
    assert time.monotonic() - begin < 5


def test_mistakes_are_told(shop: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="one of the two"):
        Inbox()
    with pytest.raises(TypeError, match="one of the two"):
        Inbox(handlers=shop, config="litestar.toml")
    with pytest.raises(HandlerError, match=r"there is no no_such\.py"), Inbox(handlers="no_such"):
        pass
    with pytest.raises(ConfigError), Inbox(config="none.toml"):
        pass
    with Inbox(handlers=shop) as inbox:
        event = inbox.receive("fragile", {"id": "a"})
        with pytest.raises(LookupError, match="has no delivery to other; it has: fragile"):
            inbox.delivery(event, "other")
        with pytest.raises(Rejected, match="blank"):
            inbox.receive("fragile", {}, id=" a")
        with pytest.raises(ValueError, match="is not a duration"):
            inbox.advance("5 seconds")


async def _in_a_loop(shop: str) -> int:
    with Inbox(handlers=shop) as inbox:
        inbox.receive("stripe", PAID)
        inbox.drain()
        return len(inbox.rows("select * from payments"))


def test_it_works_where_a_loop_runs(shop: str) -> None:
    assert asyncio.run(_in_a_loop(shop)) == 1


@pytest.mark.alone
def test_it_opens_in_less_than_50_ms(shop: str) -> None:
    took = []
    for _ in range(7):
        begin = time.perf_counter()
        with Inbox(handlers=shop):
            took.append(time.perf_counter() - begin)
    assert min(took) < 0.05


def test_nothing_is_left_of_it(shop: str) -> None:
    with Inbox(handlers=shop) as inbox:
        ((_, _, file),) = inbox.rows("pragma database_list")
        assert Path(file).exists()
    assert not Path(file).parent.exists()


def test_the_example_of_the_readme_passes(shop: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```python\n")[1:]]
    (handlers,) = [block for block in blocks if '@on("partner", type="invoice.paid")' in block]
    (test,) = [block for block in blocks if "oncebox.testing" in block]
    (tmp_path / f"{shop}.py").write_text(handlers)
    found: dict[str, Any] = {}
    exec(test.replace('handlers="handlers"', f'handlers="{shop}"'), found)  # our own README
    found["test_a_payment_is_recorded_once"]()


UNAWAITED = """
from oncebox import on

async def work(event): raise AssertionError("it ran")
def generate(event): yield event

@on("demo", type="async")
async def one(event): return work(event)

@on("demo", type="staged")
async def two(event, db): return work(event)

@on("demo", type="generator")
def three(event): return generate(event)
"""


@pytest.mark.parametrize(("kind", "name"), [("async", "one"), ("staged", "two"), ("generator", "three")])
def test_what_has_not_been_awaited_is_not_done(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"unawaited_{kind}.py").write_text(UNAWAITED)
    monkeypatch.syspath_prepend(tmp_path)
    with Inbox(handlers=f"unawaited_{kind}") as inbox:
        event = inbox.receive("demo", {"id": "1"}, id="1", type=kind)
        inbox.drain()
        assert inbox.delivery(event, name).state == "pending"
