"""Operations that run in one transaction with their reply."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from oncebox import Refuse, Reply, Request, Retry, Transaction, operation
from oncebox.errors import Dead
from oncebox.perform.operation import Operation
from oncebox.store.sqlite import Options
from perform.conftest import DAY, Box, Clock, OpenBox

pytestmark = pytest.mark.anyio


@operation("orders")
def orders(request: Request, db: Transaction) -> Reply:
    [(order,)] = db.execute("insert into orders (sku) values (?) returning id", (request.text(),))
    return Reply(201, {"id": order}, headers={"Location": f"/orders/{order}", "ETag": '"1"'})


def raising(error: BaseException) -> Operation[..., Any]:
    @operation("orders")
    def failing(request: Request, db: Transaction) -> Reply:
        db.execute("insert into orders (sku) values ('lost')")
        db.emit("mail", id="lost")
        raise error

    return failing


def answering(reply: object) -> Operation[..., Any]:
    @operation("orders")
    def answer(request: Request, db: Transaction) -> object:
        db.execute("insert into orders (sku) values (?)", (request.key,))
        db.emit("mail", id=request.key, body={"attempt": request.attempt})
        return reply

    return answer


async def is_free(box: Box) -> None:
    """Nothing of the call is left."""
    for table in ("orders", "operations", "events", "deliveries", "totals"):
        assert await box.rows(f"select * from {table}") == []


async def test_a_replay_gets_what_the_first_call_got(open_box: OpenBox) -> None:
    async with open_box(orders) as box:
        first = await box.post("orders", {"sku": "a", "n": 1})
        assert (first.status, first.json, first.replayed) == (201, {"id": 1}, False)
        assert first.headers == {
            "content-type": "application/json",
            "location": "/orders/1",
            "etag": '"1"',
            "content-length": "8",
        }
        again = await box.post("orders", b'{"n":1, "sku":"a"}')
        assert (again.replayed, again.facts) == (True, first.facts)
        assert await box.rows("select count(*) from orders") == [(1,)]
    async with open_box(orders) as box:
        after = await box.post("orders", {"sku": "a", "n": 1})
        assert (after.replayed, after.facts) == (True, first.facts)


async def test_a_key_is_its_callers_own(open_box: OpenBox) -> None:
    async with open_box(orders) as box:
        first = await box.post("orders", {"sku": "a"})
        other = await box.post("orders", {"sku": "b"}, token="0ther")
        assert (first.json["id"], other.json["id"], other.replayed) == (1, 2, False)


async def test_another_request_under_the_same_key_is_a_conflict_and_sees_nothing_of_the_first(
    open_box: OpenBox,
) -> None:
    @operation("refunds")
    def refunds(request: Request, db: Transaction) -> Reply:
        return Reply(200, "refunded")

    async with open_box(orders, refunds) as box:
        first = await box.post("orders", {"sku": "secret"})
        for got in (
            await box.post("orders", {"sku": "b"}),
            await box.post("orders", {"sku": "secret"}, query="a=1"),
            await box.post("refunds", {"sku": "secret"}),
        ):
            assert (got.status, got.slug, got.replayed) == (422, "key-conflict", False)
            assert "location" not in got.headers
            assert b"secret" not in got.body
            assert b'"id"' not in got.body
        assert (await box.post("orders", {"sku": "secret"})).facts == first.facts


@pytest.mark.parametrize("status", [200, 201, 204, 303, 400, 404, 409, 422, 499])
async def test_a_reply_that_was_decided_is_kept(open_box: OpenBox, status: int) -> None:
    async with open_box(answering(Reply(status))) as box:
        first = await box.post("orders", {})
        assert (first.status, first.replayed) == (status, False)
        again = await box.post("orders", {})
        assert (again.replayed, again.facts) == (True, first.facts)
        assert await box.rows("select count(*) from orders") == [(1,)]
        assert await box.rows("select id, parent from events") == [("k1", None)]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 599])
async def test_a_reply_that_decides_nothing_undoes_everything(open_box: OpenBox, status: int) -> None:
    async with open_box(answering(Reply(status, "later", headers={"Retry-After": "7"}))) as box:
        for _ in range(2):
            got = await box.post("orders", {})
            assert (got.status, got.body, got.headers["retry-after"], got.replayed) == (status, b"later", "7", False)
        await is_free(box)


@pytest.mark.parametrize(
    ("error", "status", "slug"),
    [
        (Refuse(422, "no such sku"), 422, "blank"),
        (Refuse(409), 409, "blank"),
        (Refuse(503, "closed", headers={"Retry-After": "9"}), 503, "blank"),
        (Retry("busy", after="5m"), 503, "blank"),
        (Retry(), 503, "blank"),
        (Retry("x", after="soon"), 500, "blank"),
        (Refuse(200, "well"), 500, "blank"),
        (Refuse(422, "why", headers={"a b": "c"}), 500, "blank"),
        (Dead("never"), 500, "blank"),
        (ValueError("boom"), 500, "blank"),
        (ExceptionGroup("all", [ValueError("boom")]), 500, "blank"),
        (SystemExit(3), 500, "blank"),
        (KeyboardInterrupt(), 500, "blank"),
        (GeneratorExit(), 500, "blank"),
        (asyncio.CancelledError(), 500, "blank"),
        (StopIteration(), 500, "blank"),
    ],
)
async def test_what_is_raised_undoes_everything_and_frees_the_key(
    open_box: OpenBox, error: BaseException, status: int, slug: str
) -> None:
    async with open_box(raising(error)) as box:
        for _ in range(2):
            got = await box.post("orders", {})
            assert (got.status, got.slug, got.replayed) == (status, slug, False)
            assert b"boom" not in got.body
        await is_free(box)
        assert (await box.post("orders", {"other": 1})).status == status


async def test_a_refusal_says_why_and_when_to_come_again(open_box: OpenBox) -> None:
    async with open_box(raising(Retry("the till is closed", after="90s"))) as box:
        got = await box.post("orders", {})
        assert (got.json["detail"], got.headers["retry-after"]) == ("the till is closed", "90")


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    "reply",
    [
        None,
        {"id": 1},
        Reply(200, object()),
        Reply(200, {"x": {1: object()}}),
        Reply(200, "\ud800"),
        Reply(200, b"x" * ((16 << 20) + 1)),
        Reply(204, "a body"),
        Reply(99),
        Reply(600),
        Reply("200"),  # type: ignore[arg-type]
        Reply(True),
        Reply(200, "", headers={"X": "a\nb"}),
        Reply(200, "", headers={"": "a"}),
        Reply(200, "", headers={"Location": "/\u20ac"}),
        Reply(200, "", headers={"Location": 7}),  # type: ignore[dict-item]
    ],
)
async def test_a_reply_that_cannot_be_sent_undoes_everything(open_box: OpenBox, reply: object) -> None:
    async with open_box(answering(reply)) as box:
        got = await box.post("orders", {})
        assert (got.status, got.slug) == (500, "blank")
        await is_free(box)


async def test_an_error_that_cannot_say_what_it_is_holds_no_key(open_box: OpenBox) -> None:
    async with open_box(raising(Odd())) as box:
        assert (await box.post("orders", {})).status == 500
        await is_free(box)


async def test_what_must_be_awaited_has_done_nothing(open_box: OpenBox) -> None:
    @operation("orders")
    def forgotten(request: Request, db: Transaction) -> Any:
        async def later() -> Reply:
            return Reply(200)

        return later()

    async with open_box(forgotten) as box:
        assert (await box.post("orders", {})).status == 500
        await is_free(box)


async def test_headers_that_a_replay_would_lack_are_not_sent_at_first(
    open_box: OpenBox, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"X-Total": "7", "Link": "</a>; rel=next", "Content-Language": "de", "Content-Type": "text/x"}
    async with open_box(answering(Reply(200, "hello", headers=headers))) as box:
        first = await box.post("orders", {})
        assert first.headers == {
            "link": "</a>; rel=next",
            "content-language": "de",
            "content-type": "text/x",
            "content-length": "5",
        }
        assert (await box.post("orders", {})).facts == first.facts
        assert "X-Total" in caplog.text


@pytest.mark.parametrize(
    ("body", "content_type", "raw"),
    [
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        (bytearray(b"ab"), "application/octet-stream", b"ab"),
        ("käse", "text/plain; charset=utf-8", "käse".encode()),
        ({"a": [1, None]}, "application/json", b'{"a":[1,null]}'),
        ([], "application/json", b"[]"),
        (0, "application/json", b"0"),
    ],
)
async def test_bodies_are_bytes_text_or_json(open_box: OpenBox, body: object, content_type: str, raw: bytes) -> None:
    async with open_box(answering(Reply(200, body))) as box:
        got = await box.post("orders", {})
        assert (got.headers["content-type"], got.body) == (content_type, raw)


async def test_a_large_reply_is_repeated_byte_for_byte_after_a_restart(open_box: OpenBox) -> None:
    body = hashlib.sha256(b"x").digest() * (8 << 15)
    async with open_box(answering(Reply(200, body))) as box:
        first = await box.post("orders", {})
    async with open_box(answering(Reply(200, "another"))) as box:
        again = await box.post("orders", {})
        assert len(again.body) == 8 << 20
        assert hashlib.sha256(again.body).digest() == hashlib.sha256(first.body).digest()
        assert (again.replayed, again.facts) == (True, first.facts)


async def test_emitted_events_are_delivered_only_with_the_reply(open_box: OpenBox) -> None:
    async with open_box(answering(Reply(200))) as box:
        await box.post("orders", {}, key="a")
        await box.post("orders", {}, key="b")
        assert await box.rows("select target, state from deliveries") == [("mailer", "pending")] * 2
        assert await box.rows("select what, n from totals where minute = 0 order by 1") == [
            ("pending", 2),
            ("received", 2),
        ]


async def test_an_operation_sees_the_request(open_box: OpenBox) -> None:
    @operation("show")
    def show(request: Request, db: Transaction) -> Reply:
        exact = request.json()
        assert isinstance(exact, dict)
        seen = (request.operation, request.caller, request.key, request.method, request.path, request.query)
        assert "authorization" not in request.headers
        return Reply(200, [*seen, request.attempt, str(exact["n"]), request.headers["X-Trace"]])

    async with open_box(show) as box:
        got = await box.post("show", b'{"n":123456789012345678901234567890}', query="a=%20", headers={"X-trace": "t"})
        path = "/do/show"
        big = "123456789012345678901234567890"
        assert got.json == ["show", "acme", "k1", "POST", path, "a=%20", 1, big, "t"]


async def test_one_that_ends_the_transaction_takes_nobody_with_it(open_box: OpenBox) -> None:
    @operation("orders")
    def create(request: Request, db: Transaction) -> Reply:
        text = request.text()
        db.execute(f"insert {'or rollback ' if 'bad' in text else ''}into orders (sku) values (?)", (text,))
        return Reply(201)

    async with open_box(create) as box:
        await box.post("orders", "bad", key="first")
        bodies = [f"n{n}" for n in range(20)] + ["bad"] + [f"m{n}" for n in range(20)]
        got = await asyncio.gather(*(box.post("orders", body, key=f"k{n}") for n, body in enumerate(bodies)))
        assert [one.status for one in got] == [201] * 20 + [500] + [201] * 20
        assert await box.rows("select count(*) from orders") == [(41,)]
        assert await box.rows("select count(*) from operations") == [(41,)]


async def test_one_that_swallows_the_end_of_its_transaction_is_not_kept(open_box: OpenBox) -> None:
    @operation("orders")
    def create(request: Request, db: Transaction) -> Reply:
        db.execute("insert into orders (sku) values ('a')")
        try:
            db.execute("insert or rollback into orders (sku) values ('a')")
        except Exception:  # noqa: BLE001  # what a careless author writes
            return Reply(201)
        return Reply(200)

    async with open_box(create) as box:
        got = await box.post("orders", {})
        assert (got.status, got.slug) == (500, "blank")
        await is_free(box)


async def test_running_sql_is_interrupted_and_the_key_is_free(open_box: OpenBox) -> None:
    endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select count(*) from n"

    @operation("orders")
    def create(request: Request, db: Transaction) -> Reply:
        db.execute("insert into orders (sku) values (?)", (request.text(),))
        if "slow" in request.text():
            db.execute(f"insert into orders (sku) {endless}")
        return Reply(201)

    async with open_box(create, options=Options(sync_timeout=0.1)) as box:
        got = await asyncio.gather(*(box.post("orders", body, key=body) for body in ("a", "slow", "b")))
        assert [one.status for one in got] == [201, 500, 201]
        assert await box.rows("select sku from orders order by 1") == [('"a"',), ('"b"',)]
        assert await box.states() == [("acme", "a", "done", 1), ("acme", "b", "done", 1)]


async def test_what_may_not_be_touched_may_not_be_touched_by_operations(open_box: OpenBox) -> None:
    @operation("orders")
    def create(request: Request, db: Transaction) -> Reply:
        return Reply(200, db.execute("select * from operations"))

    async with open_box(create) as box:
        assert (await box.post("orders", {})).status == 500
        await is_free(box)


async def test_a_transaction_is_dead_once_the_operation_has_returned(open_box: OpenBox) -> None:
    kept: list[Transaction] = []

    @operation("orders")
    def create(request: Request, db: Transaction) -> Reply:
        kept.append(db)
        return Reply(200)

    async with open_box(create) as box:
        await box.post("orders", {})
        with pytest.raises(Exception, match="ended"):
            kept[0].execute("insert into orders (sku) values ('late')")


async def test_many_at_once_are_each_made_once(open_box: OpenBox) -> None:
    async with open_box(orders) as box:
        calls = [(f"k{n % 100}", {"sku": n % 100}) for n in range(300)]
        got = await asyncio.gather(*(box.post("orders", body, key=key) for key, body in calls))
        assert {one.status for one in got} == {201}
        assert sum(one.replayed for one in got) == 200
        assert await box.rows("select count(*), count(distinct sku) from orders") == [(100, 100)]
        by_key: dict[str, set[bytes]] = {}
        for (key, _), one in zip(calls, got, strict=True):
            by_key.setdefault(key, set()).add(one.body)
        assert all(len(bodies) == 1 for bodies in by_key.values())


async def test_a_key_is_new_again_when_its_reply_has_expired_and_twins_then_make_one_more(
    open_box: OpenBox, clock: Clock
) -> None:
    @operation("orders")
    def create(request: Request, db: Transaction) -> Reply:
        [(order,)] = db.execute("insert into orders (sku) select count(*) from orders returning id")
        return Reply(201, {"id": order})

    async with open_box(create, keep=2 * DAY) as box:
        first = await box.post("orders", {})
        clock.move(2 * DAY)
        assert (await box.post("orders", {})).facts == first.facts
        clock.at += 1
        got = await asyncio.gather(*(box.post("orders", {}) for _ in range(20)))
        assert {one.body for one in got} == {b'{"id":2}'}
        assert sum(not one.replayed for one in got) == 1
        assert await box.rows("select count(*) from orders") == [(2,)]


async def test_replies_are_kept_a_day_at_least_and_for_ever_while_the_clock_is_in_doubt(
    open_box: OpenBox, clock: Clock
) -> None:
    async with open_box(orders, keep=1) as box:
        first = await box.post("orders", {})
        clock.move(DAY)
        assert (await box.post("orders", {})).facts == first.facts
        clock.move(DAY)
        box.performer._in_doubt = lambda: True
        assert (await box.post("orders", {})).facts == first.facts
        await box.performer.expire()
        assert len(await box.states()) == 1
        box.performer._in_doubt = lambda: False
        await box.performer.expire()
        assert await box.states() == []


async def test_a_clock_that_steps_back_expires_nothing(open_box: OpenBox, clock: Clock) -> None:
    async with open_box(orders, keep=float("inf")) as box:
        first = await box.post("orders", {})
        clock.move(-400 * DAY)
        assert (await box.post("orders", {})).facts == first.facts
        clock.move(90_000 * DAY)
        assert (await box.post("orders", {})).facts == first.facts


async def test_an_outside_writer_is_waited_for(open_box: OpenBox) -> None:
    import sqlite3

    async with open_box(orders) as box:
        other = sqlite3.connect(box.store.path, isolation_level=None)
        other.execute("begin immediate")
        waiting = [asyncio.ensure_future(box.post("orders", {"n": n}, key=f"k{n}")) for n in range(3)]
        done, _ = await asyncio.wait(waiting, timeout=0.3)
        assert not done
        other.execute("rollback")
        other.close()
        assert [one.status for one in await asyncio.gather(*waiting)] == [201] * 3
        assert await box.rows("select count(*) from orders") == [(3,)]
