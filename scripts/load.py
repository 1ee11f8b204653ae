"""The load: signed requests over keep-alive connections on loopback, bounded in number and time; one JSON line out."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import json
import secrets
import sys
import time
from collections.abc import Iterator
from itertools import count, cycle, islice
from typing import cast

import msgspec
import uvloop

HOST = "127.0.0.1"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to send: at most `requests` in at most `seconds`, `rate` a second (0: as fast as answers come)."""

    port: int
    secret: str
    run: str
    connections: int = 1
    seconds: float = 4.0
    warm_up: float = 0.5
    requests: int = 100_000
    rate: float = 0.0
    size: int = 1024
    random_ids: bool = False
    operation: str = ""  # with a name: calls of it with the id as their key, in place of events
    status: int = 202  # what every answer must be
    known: int = 0  # with a number: these many ids are sent once, unmeasured, and then again and again


class Tally:
    """What came back. Only what was sent after the warm-up is measured; everything is checked and counted."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0
        self.replayed = 0
        self.wrong: dict[str, int] = {}
        self.latencies: list[int] = []
        self.start_at = 0
        self.measure_from = 0
        self.last_at = 0
        self.cpu = 0.0  # share of one core that the generator itself used: near 1 it is what was measured


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request in flight; asks `supply` for the next one after each answer."""

    def __init__(self, plan: Plan, supply: Iterator[bytes], tally: Tally, deadline: int, interval: int) -> None:
        self.status = plan.status
        self.supply = supply
        self.tally = tally
        self.deadline = deadline
        self.interval = interval
        self.loop = asyncio.get_running_loop()
        self.done = self.loop.create_future()
        self.buffer = b""
        self.sent_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods only

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.tally.wrong["connection lost"] = self.tally.wrong.get("connection lost", 0) + 1
            self.done.set_result(None)

    def send(self) -> None:
        """Send the next request when it is its turn, or end."""
        now = time.perf_counter_ns()
        request = next(self.supply, None) if now < self.deadline else None
        if request is None:
            self.done.set_result(None)
            self.transport.close()
            return
        turn = self.tally.sent * self.interval + self.tally.start_at
        self.tally.sent += 1
        if self.interval and turn > now:
            self.loop.call_later((turn - now) / 1e9, self.write, request)
        else:
            self.write(request)

    def write(self, request: bytes) -> None:
        self.sent_at = time.perf_counter_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        start = head.index(b"content-length: ") + 16
        if len(self.buffer) < end + 4 + int(head[start:].split(b"\r\n", 1)[0]):
            return
        self.buffer = b""
        self.judge(head)
        self.send()

    def judge(self, head: bytes) -> None:
        tally = self.tally
        tally.answered += 1
        tally.last_at = time.perf_counter_ns()
        if b"\r\nidempotent-replayed: true" in head:
            tally.replayed += 1
        status = head[9:12].decode()
        if int(status) != self.status:
            tally.wrong[status] = tally.wrong.get(status, 0) + 1
        elif self.sent_at >= tally.measure_from:
            tally.latencies.append(tally.last_at - self.sent_at)


def request(plan: Plan, id: str) -> bytes:
    """One signed request or one call, ready for the wire, with a JSON body of exactly the planned size."""
    body = json.dumps({"id": id, "type": "bench.sent", "pad": ""}, separators=(",", ":")).encode()
    body = body[:-2] + b"x" * (plan.size - len(body)) + body[-2:]
    if plan.operation:
        path = f"/do/{plan.operation}"
        proof = f"Authorization: Bearer {plan.secret}\r\nIdempotency-Key: {id}"
    else:
        path = "/in/bench"
        proof = f"X-Signature: {hmac.new(plan.secret.encode(), body, hashlib.sha256).hexdigest()}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}:{plan.port}\r\nContent-Type: application/json\r\n"
        f"{proof}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def ids(plan: Plan) -> Iterator[str]:
    """Ids of one length, growing or random."""
    for number in count():
        yield f"evt_{plan.run}_{secrets.token_hex(6) if plan.random_ids else f'{number:012d}'}"


async def drive(plan: Plan, supply: Iterator[bytes], *, seconds: float, warm_up: float) -> Tally:
    """Send until the supply or the time is used up."""
    tally = Tally()
    loop = asyncio.get_running_loop()
    tally.start_at = time.perf_counter_ns()
    tally.measure_from = tally.start_at + int(warm_up * 1e9)
    deadline = tally.measure_from + int(seconds * 1e9)
    interval = int(1e9 / plan.rate) if plan.rate else 0
    open_all = [
        loop.create_connection(lambda: Connection(plan, supply, tally, deadline, interval), HOST, plan.port)
        for _ in range(plan.connections)
    ]
    connections = [protocol for _, protocol in await asyncio.gather(*open_all)]
    used = time.process_time()
    for connection in connections:
        connection.send()
    async with asyncio.timeout(warm_up + seconds + 60):
        await asyncio.gather(*(connection.done for connection in connections))
    tally.cpu = (time.process_time() - used) / (time.perf_counter_ns() - tally.start_at) * 1e9
    return tally


async def run(plan: Plan) -> dict[str, object]:
    """The whole plan; the figures as plain values."""
    wire = [request(plan, id) for id in islice(ids(plan), plan.known or plan.requests)]
    first = 0
    if plan.known:
        sown = await drive(plan, iter(wire), seconds=60, warm_up=0)
        first = sown.answered - sown.replayed
    supply = islice(cycle(wire), plan.requests) if plan.known else iter(wire)
    tally = await drive(plan, supply, seconds=plan.seconds, warm_up=plan.warm_up)
    return figures(tally) | {"first": first + tally.answered - tally.replayed}


def figures(tally: Tally) -> dict[str, object]:
    """Answers a second and latencies in milliseconds of what was measured."""
    latencies = sorted(tally.latencies)
    seconds = max(tally.last_at - tally.measure_from, 1) / 1e9
    return {
        "rate": round(len(latencies) / seconds, 1),
        "answered": tally.answered,
        "replayed": tally.replayed,
        "measured": len(latencies),
        "wrong": tally.wrong,
        "load_cpu": round(tally.cpu, 2),
        "mean": round(sum(latencies) / max(len(latencies), 1) / 1e6, 3),
    } | {name: round(quantile(latencies, part), 3) for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def quantile(ordered: list[int], part: float) -> float:
    """In milliseconds, of a list of nanoseconds."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] / 1e6 if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", help="a JSON object with the fields of Plan")
    plan = msgspec.json.decode(parser.parse_args().plan, type=Plan)
    sys.stdout.write(json.dumps(uvloop.run(run(plan))) + "\n")


if __name__ == "__main__":
    main()
