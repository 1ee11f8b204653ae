"""The stream of a real server: it is live, it ends with the server, and a listener that does not read costs nothing."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from process.rig import TOKEN, Client, Server, clean_stop, until
from process.servers import Serve

pytestmark = pytest.mark.process


class Listener:
    """A connection to the stream; `tick` gives the next one."""

    def __init__(self, server: Server, last: str = "") -> None:
        again = f"Last-Event-ID: {last}\r\n" if last else ""
        head = f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n{again}\r\n"
        self.line = server.connect()
        self.line.sendall(head.encode())
        self.file = self.line.makefile("rb")
        self.id = ""

    def tick(self) -> Any:
        while not (line := self.file.readline()).startswith(b"data: "):
            assert line, "the stream has ended"
            if line.startswith(b"id: "):
                self.id = line[4:].decode().strip()
        return json.loads(line[6:])

    def until(self, state: str) -> list[int]:
        """The first tick with events in a state; their numbers."""
        while True:
            found = [event["seq"] for event in self.tick()["events"] if event["state"] == state]
            if found:
                return found

    def close(self) -> None:
        self.file.close()
        self.line.close()


HANDLER = """
from oncebox import on

@on("demo")
def book(event, db): ...
"""


def test_an_event_and_its_outcome_are_told_and_a_stop_ends_the_stream_at_once(serve: Serve) -> None:
    server = serve(handlers=HANDLER).start()
    one = Listener(server)
    assert one.tick()["totals"]["events"] == 0
    server.post("a")
    assert one.until("done") == [1]
    last = one.id
    again = Listener(server, last)
    server.post("b")
    assert again.until("done") == [2]
    begin = time.monotonic()
    clean_stop(server, within=5)
    assert time.monotonic() - begin < 4
    for listener in (one, again):
        rest = listener.file.read()
        assert rest.endswith(b"0\r\n\r\n"), rest[-80:]
        listener.close()


def test_ticks_come_four_times_a_second_at_most(serve: Serve) -> None:
    server = serve(handlers=HANDLER).start()
    one = Listener(server)
    one.tick()
    begin, ticks = time.monotonic(), 0
    with Client(server) as client:
        for number in range(300):
            client.post(f"e{number}")
    while True:
        ticks += 1
        if one.tick()["totals"]["by_state"]["done"] == 300:
            break
    assert ticks <= 4 * (time.monotonic() - begin) + 1
    one.close()


@pytest.mark.alone
def test_a_listener_that_reads_nothing_costs_no_memory_and_stops_no_other(serve: Serve) -> None:
    server = serve(handlers=HANDLER).start()
    quick, deaf = Listener(server), [Listener(server) for _ in range(20)]
    for one in deaf:
        one.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with Client(server) as client:
        for number in range(100):
            client.post(f"warm{number}")
        until(lambda: server.states().get("done") == 100, 10)
        before = resident(server)
        for number in range(1500):
            client.post(f"e{number}")
    while quick.tick()["totals"]["by_state"]["done"] < 1600:
        pass
    assert resident(server) - before < 24 << 20
    clean_stop(server, within=15)
    for one in (quick, *deaf):
        one.close()


def resident(server: Server) -> int:
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096
