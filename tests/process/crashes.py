"""Crashes: a server that is killed again and again under load, and what must be true in the end."""

from __future__ import annotations

import http.client
import random
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread

from process.rig import Client, Server, clean_stop, poisoned, until

SENDERS = 6
SINK = "sink.txt"
LOADED = """
import asyncio, os
from oncebox import Event, Transaction, on, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (id text not null) strict")

@on("demo", type="quick")
def quick(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    db.emit("mail", id=f"mail-{event.id}", body={"to": event.id})

@on("mail")
def mail(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))

@on("demo", type="slow", concurrency=8)
async def slow(event: Event) -> None:
    await asyncio.sleep(0.1)
    with open("sink.txt", "a") as sink:
        sink.write(event.id + "\\n")
"""
DEADLY = """
import os, signal
from oncebox import Event, Transaction, on, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (id text not null) strict")

@on("demo")
def count(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
    if event.type == "deadly":
        with open("deaths.txt", "a") as deaths:
            deaths.write(event.id + "\\n")
        os.kill(os.getpid(), signal.SIGKILL)
"""
DEADLY_ASYNC = """
import asyncio, os, signal
from oncebox import Event, on

@on("demo", concurrency=8)
async def count(event: Event) -> None:
    await asyncio.sleep(0.01)
    if event.type == "deadly":
        with open("deaths.txt", "a") as deaths:
            deaths.write(event.id + "\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    with open("sink.txt", "a") as sink:
        sink.write(event.id + "\\n")
"""


class Load:
    """Senders that go on until they are cut off; `receipts` is what they were told, `owed` what they never heard of."""

    def __init__(self) -> None:
        self.receipts: dict[str, bytes] = {}
        self.owed: dict[str, str] = {}
        self._stop = Event()
        self._threads: list[Thread] = []

    def start(self, server: Server, round: int) -> None:
        self._stop.clear()
        self._threads = [Thread(target=self._send, args=(server, f"{round}-{n}")) for n in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def send_again(self, server: Server) -> None:
        """The senders' retries: each gets a receipt now."""
        with Client(server) as client:
            for id, type in self.owed.items():
                answer = client.post(id, type=type)
                assert answer.status == 202
                self.receipts[id] = answer.body
        self.owed.clear()

    def _send(self, server: Server, name: str) -> None:
        number = 0
        with Client(server) as client:
            while not self._stop.is_set():
                number += 1
                id, type = f"{name}-{number}", "slow" if number % 12 == 0 else "quick"
                try:
                    answer = client.post(id, type=type)
                except (OSError, http.client.HTTPException):
                    self.owed[id] = type
                    return
                assert answer.status == 202, answer
                self.receipts[id] = answer.body
                time.sleep(0.002)  # a moderate load, not a benchmark


def kill_rounds(server: Server, *, rounds: int, longest: float, seed: int, suspects_too: bool = False) -> None:
    """Kill at random moments under load, also soon after a start; then everything must be there, once, and done."""
    moments, load = random.Random(seed), Load()
    for number in range(rounds):
        if not server.alive():
            server.start()
        load.start(server, number)
        time.sleep(moments.uniform(0.05, longest))
        server.kill()
        load.join()
        server.start()
        load.send_again(server)
        if suspects_too and number % 2:
            server.kill()
    if not server.alive():
        server.start()
    _nothing_is_lost_or_doubled(server, load)


def _nothing_is_lost_or_doubled(server: Server, load: Load) -> None:
    server.until_quiet(120)
    assert list(poisoned(server)) == []
    assert set(server.states()) == {"done"}
    received = [id for (id,) in server.rows("select id from v_events where source = 'demo'")]
    assert sorted(received) == sorted(load.receipts)
    quick = {id for (id,) in server.rows("select id from v_events where type = 'quick'")}
    effects = Counter(id for (id,) in server.rows("select id from effects"))
    assert effects == Counter([*quick, *(f"mail-{id}" for id in quick)])
    assert set(_lines(server.folder / SINK)) == set(load.receipts) - quick
    with Client(server) as client:
        for id in random.Random(1).sample(sorted(load.receipts), min(50, len(load.receipts))):
            assert client.post(id).body == load.receipts[id]
    clean_stop(server)


def quarantine(server: Server, *, good: int, within: float, deadly: int = 1) -> int:
    """Events that kill the process among good ones, under a supervisor; the number of deaths it took."""
    server.start()
    bad = [f"deadly-{n}" for n in range(deadly)]
    pending = [(f"good-{n}", "good") for n in range(good)]
    for number, id in enumerate(bad):
        pending.insert(good * (number + 1) // (deadly + 1), (id, "deadly"))
    end = time.monotonic() + within
    while pending or _owes(server):
        assert time.monotonic() < end, f"still restarting:\n{server.log()}"
        if not server.alive():
            assert server.wait(1) == -9
            server.start()
        pending = _send_what_is_left(server, pending)
        time.sleep(0.02)
    assert [id for id, _ in poisoned(server)] == bad
    assert dict(server.rows("select state, count(*) from v_events group by 1")) == {"done": good, "dead": deadly}
    return len(_lines(server.folder / "deaths.txt"))


def _owes(server: Server) -> bool:
    return not server.alive() or bool(set(server.states()) & {"pending", "parked", "running"})


def _send_what_is_left(server: Server, pending: list[tuple[str, str]]) -> list[tuple[str, str]]:
    try:
        with Client(server) as client:
            while pending:
                assert client.post(pending[0][0], type=pending[0][1]).status == 202
                pending = pending[1:]
    except (OSError, http.client.HTTPException):
        until(lambda: not server.alive(), 5, "the death that cut the connection")
    return pending


def _lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []
