"""Real clients that retry, behind a network that cuts their connections: one resource, one reply."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import httpx
import pytest
import stripe

from perform.cutting import Cutting
from process.rig import Server, clean_stop

pytestmark = pytest.mark.process

SECRET = "of-the-shop"
CONFIG = f'[callers]\nshop = "plain:{SECRET}"\n'
# Stripe's client sends forms and reads objects; the others send JSON. Both kinds of operation take a moment.
MAKING = """
import asyncio, time
from urllib.parse import parse_qs
from oncebox import Reply, Request, StagedTransaction, Transaction, operation, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists made (id integer primary key, what text not null, key text) strict")

@operation("customers")
def customers(request: Request, db: Transaction) -> Reply:
    email = parse_qs(request.text())["email"][0]
    [(id,)] = db.execute("insert into made (what, key) values (?, ?) returning id", (email, request.key))
    return Reply(200, {"id": f"cus_{id}", "object": "customer", "email": email})

@operation("charges")
async def charges(request: Request, db: StagedTransaction) -> Reply:
    amount = parse_qs(request.text())["amount"][0]
    await asyncio.sleep(0.8)
    db.execute("insert into made (what, key) values (?, ?)", (amount, request.key))
    return Reply(200, {"id": f"ch_{amount}", "object": "charge", "amount": int(amount)})

@operation("orders")
def orders(request: Request, db: Transaction) -> Reply:
    sku = request.json()["sku"]
    [(id,)] = db.execute("insert into made (what, key) values (?, ?) returning id", (sku, request.key))
    return Reply(201, {"id": id}, headers={"Location": f"/orders/{id}"})

@operation("slow_orders")
async def slow_orders(request: Request, db: StagedTransaction) -> Reply:
    await asyncio.sleep(0.3)
    db.execute("insert into made (what, key) values (?, ?)", (request.json()["sku"], request.key))
    return Reply(201, {"sku": request.json()["sku"]}, headers={"Location": "/orders/it"})
"""
STRIPE_PATHS = {"/v1/customers": "/do/customers", "/v1/charges": "/do/charges"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "inbox", handlers=MAKING, config=CONFIG).start()
    yield made
    made.end()


def made(server: Server) -> list[tuple[Any, ...]]:
    return server.rows("select what, key from made order by id")


def client_of(proxy: Cutting, retries: int) -> stripe.StripeClient:
    return stripe.StripeClient(
        SECRET,
        base_addresses={"api": proxy.url},
        max_network_retries=retries,
        http_client=stripe.RequestsClient(timeout=10),
    )


def test_the_stripe_client_makes_one_customer_by_its_own_retries(server: Server) -> None:
    with Cutting(server, cuts=2, paths=STRIPE_PATHS) as proxy:
        customer = client_of(proxy, 3).v1.customers.create({"email": "ann@example.com"})
    assert (customer.id, customer.email) == ("cus_1", "ann@example.com")
    assert len(proxy.keys) == 3
    assert len(set(proxy.keys)) == 1
    assert made(server) == [("ann@example.com", proxy.keys[0])]
    clean_stop(server)


def test_the_stripe_client_whose_retry_comes_while_the_first_call_runs_gets_its_charge(server: Server) -> None:
    with Cutting(server, cuts=1, paths=STRIPE_PATHS) as proxy:
        charge = client_of(proxy, 2).v1.charges.create({"amount": 4200, "currency": "eur"})
    assert (charge.id, charge.amount) == ("ch_4200", 4200)
    assert len(proxy.keys) == 2
    assert made(server) == [("4200", proxy.keys[0])]


def test_the_stripe_client_reads_a_conflict_as_an_error(server: Server) -> None:
    with Cutting(server, cuts=0, paths=STRIPE_PATHS) as proxy:
        client = client_of(proxy, 0)
        client.v1.customers.create({"email": "ann@example.com"}, {"idempotency_key": "k1"})
        with pytest.raises(stripe.StripeError) as raised:
            client.v1.customers.create({"email": "bob@example.com"}, {"idempotency_key": "k1"})
    assert raised.value.http_status == 422
    assert made(server) == [("ann@example.com", "k1")]


def by_httpx(url: str, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """As people write it: a transport that retries connects, and a loop around the request for the rest."""
    headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": key, "Content-Type": "application/json"}
    with httpx.Client(transport=httpx.HTTPTransport(retries=2), timeout=10) as client:
        while True:
            with suppress(httpx.TransportError):
                answer = client.post(url, content=body, headers=headers)
                return answer.status_code, dict(answer.headers), answer.content


def by_aiohttp(url: str, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    async def call() -> tuple[int, dict[str, str], bytes]:
        headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": key, "Content-Type": "application/json"}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.post(url, data=body, headers=headers) as answer:
                        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()

    return asyncio.run(call())


def by_the_standard_library(url: str, key: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    headers = {"Authorization": f"Bearer {SECRET}", "Idempotency-Key": key, "Content-Type": "application/json"}
    _, _, host, *path = url.split("/")
    while True:
        line = http.client.HTTPConnection(host, timeout=10)
        try:
            line.request("POST", "/" + "/".join(path), body, headers)
            answer = line.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        except (OSError, http.client.HTTPException):
            continue
        finally:
            line.close()


@pytest.mark.parametrize("path", ["orders", "slow_orders"])
@pytest.mark.parametrize("post", [by_httpx, by_aiohttp, by_the_standard_library])
def test_a_client_with_a_loop_of_its_own_gets_one_resource_and_the_same_reply_ever_after(
    server: Server, post: Callable[[str, str, bytes], tuple[int, dict[str, str], bytes]], path: str
) -> None:
    key, body = str(uuid4()), json.dumps({"sku": "sku-1"}).encode()
    with Cutting(server, cuts=4) as proxy:
        status, headers, reply = post(f"{proxy.url}/do/{path}", key, body)
        again = post(f"{proxy.url}/do/{path}", f'"{key}"', body)
    assert status == 201
    assert headers["idempotent-replayed"] == "true"
    assert (status, headers["location"], reply) == (again[0], again[1]["location"], again[2])
    assert made(server) == [("sku-1", key)]
    assert proxy.keys == [key] * 5 + [f'"{key}"']
    assert proxy.statuses == [201, 201]
