"""Calls that are refused before anything runs, and what they are told."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import time

import msgspec
import pytest

from oncebox import Reply, Request, Transaction, operation
from oncebox.perform.callers import Callers
from oncebox.perform.fingerprint import fingerprint
from perform.conftest import Box, OpenBox

pytestmark = pytest.mark.anyio


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Order(msgspec.Struct):
    lines: list[Line]


@operation("orders")
def orders(request: Request, db: Transaction) -> Reply:
    [(order,)] = db.execute("insert into orders (sku) values (?) returning id", (request.text(),))
    return Reply(201, {"id": order}, headers={"Location": f"/orders/{order}"})


@operation("open", public=True)
def public(request: Request, db: Transaction) -> Reply:
    return Reply(200, {"caller": request.caller})


@operation("typed", methods=["POST", "PUT"])
def typed(order: Order, db: Transaction) -> Reply:
    return Reply(200, {"skus": [line.sku for line in order.lines]})


async def nothing_ran(box: Box) -> None:
    assert await box.rows("select * from orders") == []
    assert await box.states() == []


@pytest.mark.parametrize(
    ("token", "headers"),
    [
        (None, {}),
        ("wrong", {}),
        ("", {}),
        (None, {"authorization": "s3cret"}),
        (None, {"authorization": "Basic s3cret"}),
        ("s3cret", {"authorization": "Bearer s3cret"}),
    ],
)
@pytest.mark.parametrize("name", ["orders", "nosuch"])
async def test_who_cannot_be_named_may_call_nothing(
    open_box: OpenBox, token: str | None, headers: dict[str, str], name: str
) -> None:
    async with open_box(orders) as box:
        got = await box.post(name, {}, token=token, headers=headers)
        assert (got.status, got.slug) == (401, "unauthorized")
        assert got.headers["www-authenticate"].startswith("Bearer")
        assert got.headers["content-type"] == "application/problem+json"
        await nothing_ran(box)


async def test_without_callers_nobody_may_call_and_the_answer_says_why(open_box: OpenBox) -> None:
    async with open_box(orders, public) as box:
        box.desk.callers = Callers({})
        got = await box.post("orders", {})
        assert got.status == 401
        assert "[callers]" in got.json["detail"]
        assert (await box.post("open", {}, token=None)).status == 200


async def test_a_secret_may_be_exchanged_while_running(open_box: OpenBox) -> None:
    async with open_box(orders) as box:
        first = await box.post("orders", {"a": 1})
        box.desk.callers = Callers({"acme": "fresh"})
        assert (await box.post("orders", {"a": 1})).status == 401
        assert (await box.post("orders", {"a": 1}, token="fresh")).facts == first.facts


async def test_a_public_operation_takes_unnamed_callers_as_one_and_named_ones_as_themselves(open_box: OpenBox) -> None:
    async with open_box(public) as box:
        assert (await box.post("open", {}, token=None)).json == {"caller": ""}
        again = await box.post("open", {}, token=None)
        assert again.replayed
        named = await box.post("open", {})
        assert (named.json, named.replayed) == ({"caller": "acme"}, False)
        wrong = await box.post("open", {}, token="stale")
        assert wrong.status == 401


async def test_an_operation_or_path_that_is_not_there_is_said(open_box: OpenBox) -> None:
    async with open_box(orders) as box:
        for name in ("nosuch", "", "orders/7", "ORDERS"):
            got = await box.post(name, {})
            assert (got.status, got.slug) == (404, "not-found")
        assert (await box.post("orders/", {})).status == 201
        outside = await box.ask("/elsewhere", "GET", "", [], b"")
        assert outside.status == 418


async def test_another_method_is_told_those_that_are_taken(open_box: OpenBox) -> None:
    async with open_box(orders, typed) as box:
        got = await box.post("orders", {}, method="GET")
        assert (got.status, got.slug, got.headers["allow"]) == (405, "bad-request", "POST")
        assert (await box.post("typed", {"lines": []}, method="PUT")).status == 200
        await nothing_ran_but_typed(box)


async def nothing_ran_but_typed(box: Box) -> None:
    assert await box.rows("select operation from operations") == [("typed",)]


@pytest.mark.parametrize("key", [None, b"", b'"', b"caf\xe9"])
async def test_a_call_without_a_usable_key_is_refused(open_box: OpenBox, key: bytes | None) -> None:
    async with open_box(orders) as box:
        got = await box.post("orders", {}, key=key)
        assert (got.status, got.slug) == (400, "bad-key")
        doubled = await box.post("orders", {}, headers={"idempotency-key": "again"})
        assert (doubled.status, doubled.slug) == (400, "bad-key")
        await nothing_ran(box)


async def test_the_body_is_bounded_as_sent_and_decoded(open_box: OpenBox) -> None:
    async with open_box(orders, limit=1000) as box:
        for body, headers in (
            (b"x" * 1001, {}),
            (gzip.compress(b"x" * 1001), {"content-encoding": "gzip"}),
        ):
            got = await box.post("orders", body, headers=headers)
            assert (got.status, got.slug) == (413, "too-large")
        got = await box.post("orders", b"x", headers={"content-encoding": "br"})
        assert (got.status, got.slug) == (415, "bad-encoding")
        await nothing_ran(box)
        assert (await box.post("orders", b"x" * 1000)).status == 201


async def test_a_compressed_retry_is_the_same_request(open_box: OpenBox) -> None:
    async with open_box(orders) as box:
        first = await box.post("orders", {"a": 1})
        again = await box.post("orders", gzip.compress(b'{ "a": 1 }'), headers={"content-encoding": "gzip"})
        assert again.replayed
        assert again.facts == first.facts


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b'{"lines":[{"sku":"a"},{"sku":7}]}', 422, "$.lines[1].sku"),
        (b'{"lines":', 422, "no JSON"),
        (b"", 422, "no JSON"),
        (b'{"lines":[{"sku":"\xff"}]}', 422, ""),
    ],
)
async def test_a_typed_body_that_does_not_fit_is_told_where(
    open_box: OpenBox, body: bytes, status: int, told: str
) -> None:
    async with open_box(typed) as box:
        got = await box.post("typed", body)
        assert (got.status, got.slug) == (status, "bad-body")
        assert told in got.json["detail"]
        await nothing_ran(box)
        right = await box.post("typed", {"lines": [{"sku": "a"}]})
        assert (right.status, right.json, right.replayed) == (200, {"skus": ["a"]}, False)


async def test_a_typed_operation_takes_json_only(open_box: OpenBox) -> None:
    async with open_box(typed) as box:
        body = {"lines": [{"sku": "a"}]}
        got = await box.post("typed", body, content_type="application/x-www-form-urlencoded")
        assert (got.status, got.slug) == (415, "bad-body")
        assert (await box.post("typed", body, content_type=None)).status == 200


READERS = {
    "json": lambda request: request.json(),
    "text": lambda request: request.text(),
    "decode": lambda request: request.decode(Order),
}


@pytest.mark.parametrize(
    ("reader", "body"),
    [
        ("json", b'{"lines": [{"sku": '),
        ("json", b'{"lines": "\xff"}'),
        ("json", b"[" + b"7" * 5000 + b"]"),
        ("text", b'{"lines": "\xff"}'),
        ("decode", b'{"lines": [{"sku": '),
        ("decode", b'{"lines": "\xff"}'),
    ],
)
@pytest.mark.parametrize("retry_safe", [None, False, True])
async def test_a_body_that_the_operation_cannot_read_is_the_senders_fault(
    open_box: OpenBox, reader: str, body: bytes, retry_safe: bool | None
) -> None:
    def inside(request: Request, db: Transaction) -> Reply:
        return Reply(201, str(READERS[reader](request)))

    async def outside(request: Request) -> Reply:
        return Reply(201, str(READERS[reader](request)))

    read = operation("read")(inside) if retry_safe is None else operation("read", retry_safe=retry_safe)(outside)
    async with open_box(read) as box:
        got = await box.post("read", body)
        assert (got.status, got.slug) == (422, "bad-body")
        assert (await box.post("read", {"lines": []})).status == 201


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"", "application/json"), (b"[NaN]", "application/json"), (b"7" * 4300, "application/json"), (b"\x00", None)],
)
async def test_what_acts_outside_gets_any_body_that_could_be_read(
    open_box: OpenBox, body: bytes, content_type: str | None
) -> None:
    async with open_box(outside) as box:
        assert (await box.post("outside", body, content_type=content_type)).status == 201


@pytest.mark.parametrize("kind", ["in a transaction", "outside"])
async def test_the_line_of_an_operation_is_told_and_not_the_librarys_that_it_called(
    open_box: OpenBox, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    def inside(request: Request, db: Transaction) -> Reply:
        return Reply(201, ipaddress.ip_address("nowhere").compressed)

    def outside(request: Request) -> Reply:
        return Reply(201, ipaddress.ip_address("nowhere").compressed)

    async with open_box(operation("read")(inside if kind == "in a transaction" else outside)) as box:
        assert (await box.post("read", {})).status == 500
    assert f"reason=ValueError at {__file__}, line " in caplog.text


@operation("outside")
async def outside(request: Request) -> Reply:
    return Reply(201)


@pytest.mark.parametrize("name", ["orders", "outside"])
async def test_a_full_disk_takes_nothing_and_says_so(open_box: OpenBox, name: str) -> None:
    async with open_box(orders, outside) as box:
        box.store.writer.short = "the disk has 1 MiB free and 64 MiB must stay free"
        got = await box.post(name, {})
        assert (got.status, got.slug, got.headers["retry-after"]) == (503, "storage-full", "30")
        await nothing_ran(box)
        box.store.writer.short = ""
        assert (await box.post(name, {})).status == 201


@pytest.mark.parametrize("root", ["", "/inbox", "/api/v1"])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_call_is_found_below_the_root_of_the_application(open_box: OpenBox, root: str, whole: bool) -> None:
    async with open_box(public) as box:
        path = f"{root}/do/open" if whole else "/do/open"
        got = await box.ask(path, "POST", "", [(b"idempotency-key", b"k")], b"", root=root)
        assert got.status == 200


@pytest.mark.alone
async def test_the_structure_of_a_large_body_holds_nobody_up(open_box: OpenBox) -> None:
    async with open_box(public) as box:
        box.desk.limit = 5 << 20
        call = asyncio.create_task(box.post("open", [0] * 600_000))
        longest, last = 0.0, time.monotonic()
        while not call.done():
            await asyncio.sleep(0)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert (await call).status == 200
        whole = time.monotonic()
        fingerprint("POST", "/do/open", "", "application/json", b"[" + b"0," * 600_000 + b"0]")
        assert longest < (time.monotonic() - whole) * 0.7
