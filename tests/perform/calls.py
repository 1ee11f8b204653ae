"""Calls: operations of a real server, called by clients that hang up, and while it is killed."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Thread

from process.rig import Answer, Client, Server, at_once, parse, read_answer, reset, until

SECRET = "of-acme"
CALLERS = f'[callers]\nacme = "plain:{SECRET}"\n'
SINK = "sink.txt"
MAKING = """
import asyncio
from oncebox import Reply, Request, StagedTransaction, Transaction, operation, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists made (id integer primary key, key text not null) strict")

def sink(key: str) -> None:
    with open("sink.txt", "a") as file:
        file.write(key + "\\n")

@operation("quick")
def quick(request: Request, db: Transaction) -> Reply:
    [(id,)] = db.execute("insert into made (key) values (?) returning id", (request.key,))
    return Reply(201, {"id": id}, headers={"Location": f"/made/{id}", "ETag": f'"{id}"'})

@operation("large")
def large(request: Request, db: Transaction) -> Reply:
    [(id,)] = db.execute("insert into made (key) values (?) returning id", (request.key,))
    return Reply(200, str(id) * (8 << 20), headers={"Content-Type": "text/plain", "Content-Language": "en"})

async def pay(request: Request, db: StagedTransaction, seconds: float) -> Reply:
    sink(request.key)
    await asyncio.sleep(seconds)
    db.execute("insert into made (key) values (?)", (request.key,))
    return Reply(201, {"key": request.key, "attempt": request.attempt})

@operation("pay")
async def pays(request: Request, db: StagedTransaction) -> Reply:
    return await pay(request, db, float(request.query))

@operation("again", retry_safe=True)
async def again(request: Request, db: StagedTransaction) -> Reply:
    return await pay(request, db, float(request.query))
"""


def ask(path: str, key: str, body: bytes = b"{}") -> bytes:
    """The bytes of a call."""
    return (
        f"POST /do/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nIdempotency-Key: {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def call(server: Server, path: str, key: str, body: bytes = b"{}") -> Answer:
    headers = {
        "Authorization": f"Bearer {SECRET}",
        "Idempotency-Key": key,
        "Content-Type": "application/json",
    }
    with Client(server) as client:
        return client.request("POST", f"/do/{path}", body, headers)


def facts(answer: Answer) -> tuple[int, dict[str, str], str]:
    """All that a replay must repeat."""
    changing = ("date", "idempotent-replayed")
    headers = {name: value for name, value in answer.headers.items() if name not in changing}
    return answer.status, headers, hashlib.sha256(answer.body).hexdigest()


def acted(server: Server) -> Counter[str]:
    """How often each key has acted outside."""
    path = server.folder / SINK
    return Counter(path.read_text().split()) if path.exists() else Counter()


def made(server: Server) -> Counter[str]:
    """How many resources each key has."""
    return Counter(dict(server.rows("select key, count(*) from made group by 1")))


def hang_ups(server: Server, seconds: float, moments: Iterable[float]) -> None:
    """A client that resets its connection at each of these moments of a slow call, and then tries again."""

    def one(moment: float) -> tuple[str, Answer]:
        key = f"at-{moment:.2f}"
        line = server.connect()
        line.sendall(ask(f"pay?{seconds}", key))
        time.sleep(moment)
        reset(line)
        return key, call(server, f"pay?{seconds}", key)

    answers = dict(at_once([lambda moment=moment: one(moment) for moment in moments]))  # type: ignore[misc]
    for key, answer in answers.items():
        assert (answer.status, json.loads(answer.body)) == (201, {"key": key, "attempt": 1}), answer
        assert acted(server)[key] == made(server)[key] == 1


class Caller:
    """Calls one operation with new keys, one after the other, until it is told to stop."""

    def __init__(self, server: Server, name: str, path: str) -> None:
        self.answered: dict[str, Answer] = {}
        self.hanging: list[str] = []
        self._server, self._name, self._path = server, name, path
        self._stop = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            key = f"{self._name}-{number}"
            try:
                self.answered[key] = call(self._server, self._path, key)
            except (OSError, http.client.HTTPException):
                self.hanging.append(key)
                return
            number += 1


def kills(server: Server, path: str, *, rounds: int, callers: int = 4) -> None:
    """A server that is killed at different moments while it is called; then every call is made again."""
    name = path.partition("?")[0]
    for number in range(rounds):
        calling = [Caller(server, f"{name}-{number}-{one}", path) for one in range(callers)]
        time.sleep(0.05 + 0.013 * number)
        server.kill()
        for one in calling:
            one.stop()
        server.start()
        for one in calling:
            _all_again(server, path, one)
    counts = acted(server) if name != "quick" else Counter[str]()
    for key, count in counts.items():
        assert count == 1 or name == "again", (key, count)
    assert set(made(server).values()) == {1}
    assert server.rows("select count(*) from operations where state = 'running'") == [(0,)]
    if name != "pay":
        assert server.rows("select count(*) from operations where state = 'unknown'") == [(0,)]


def _all_again(server: Server, path: str, caller: Caller) -> None:
    for key, answer in caller.answered.items():
        assert answer.status == 201
        replay = call(server, path, key)
        assert replay.replayed
        assert facts(replay) == facts(answer)
    for key in caller.hanging:
        begin = time.monotonic()
        answer = call(server, path, key)
        assert time.monotonic() - begin < 10
        if path.startswith("pay") and answer.status == 409:
            assert answer.problem == "outcome-unknown"
            assert made(server)[key] == 0
            continue
        assert answer.status == 201, answer
        assert facts(call(server, path, key)) == facts(answer)
        assert made(server)[key] == 1


def crowd(server: Server, count: int) -> list[Answer]:
    """So many connections with the same slow call at the same moment."""
    lines: list[socket.socket] = [server.connect() for _ in range(count)]
    try:
        lines[0].sendall(ask("pay?1.0", "crowd"))
        until(lambda: acted(server)["crowd"], 5)
        for line in lines[1:]:
            line.sendall(ask("pay?1.0", "crowd"))
        return [parse(read_answer(line)) for line in lines]
    finally:
        for line in lines:
            line.close()


def write_config(server: Server, before: str, after: str) -> None:
    path = Path(server.folder) / "litestar.toml"
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
