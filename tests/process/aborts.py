"""Aborts: clients that hang up at any moment of a request."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from functools import partial

from process.rig import TOKEN, Client, Server, at_once, reset, until

CALLERS = 4
REFUSED = 20
HEAD = b"POST /in/demo HTTP/1.1\r\nHost: localhost\r\n"
ACCEPT = (
    b"POST /api/refused/%d/accept HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
    b'Content-Type: application/json\r\nContent-Length: 15\r\n\r\n{"trust": true}'
)
SIGNED = """
[sources.partner]
id = "header:Idempotency-Key"
signature = { scheme = "hmac", hash = "sha256", from = "header:X-Signature", encoding = "hex", message = "{body}" }
secrets = ["plain:not what they sign with"]
"""


def warm_up(server: Server) -> None:
    """One event, and some refused ones that can be accepted later."""
    assert server.post("warm").status == 202
    for number in range(REFUSED):
        assert server.post(f"refused-{number}", source="partner").status == 401
    until(lambda: server.rows("select count(*) from refused") == [(REFUSED,)], 10, "the refused are kept")
    server.until_quiet(5)


def abort(server: Server, count: int, *, seed: int) -> None:
    """So many requests, each reset with an RST at some moment within 30 ms, at some byte of it."""
    at_once([partial(_abort_some, server, count // CALLERS, random.Random(seed + n), n) for n in range(CALLERS)])


def nothing_stays_open(server: Server, descriptors: int, threads: int) -> None:
    """A normal request and somebody else's write transaction both succeed within a second, and nothing has leaked."""
    begin = time.monotonic()
    with Client(server, timeout=1) as client:
        assert client.post("after the aborts").status == 202
    with contextlib.closing(sqlite3.connect(server.database, timeout=1, isolation_level=None)) as outside:
        outside.execute("begin immediate")
        outside.execute("rollback")
    assert time.monotonic() - begin < 2
    until(lambda: server.descriptors() <= descriptors, 30, "descriptors at the baseline")
    until(lambda: server.threads() <= threads, 30, "threads at the baseline")


def _abort_some(server: Server, count: int, moments: random.Random, caller: int) -> None:
    for number in range(count):
        text = _request(b"abort-%d-%d" % (caller, number), moments)
        line = server.connect()
        with contextlib.suppress(ConnectionError):
            line.sendall(text[: moments.randint(0, len(text))] if moments.random() < 0.5 else text)
        time.sleep(moments.uniform(0, 0.03))
        reset(line)


def _request(id: bytes, moments: random.Random) -> bytes:
    """Whole or cut, plain or chunked, to each route that writes: accepted, refused and kept, or accepted after all."""
    body = b"x" * moments.choice((0, 2, 1000, 100_000))
    head = HEAD + b"Idempotency-Key: %s\r\n" % id if moments.random() < 0.8 else HEAD
    shape = moments.randrange(5)
    if shape == 0:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if shape == 1:
        return head + b"Content-Length: %d\r\n\r\n" % (len(body) + 100) + body
    if shape == 2:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(body) or 1, body or b"x") + b"0\r\n\r\n"
    if shape == 3:
        return head + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n%x\r\n%s" % (len(body) + 1, body)
    return ACCEPT % (moments.randint(1, REFUSED), TOKEN.encode())
