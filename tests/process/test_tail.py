"""`oncebox tail` beside a real server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from process.rig import CODE, Client, Fresh, Server, environment

HANDLER = """
from oncebox import Event, Transaction, on

@on("demo", type="old")
def ledger(event: Event, db: Transaction) -> None:
    return None
"""


class Tail:
    """The command, running beside a server."""

    def __init__(self, process: subprocess.Popen[str], said: IO[str], warned: IO[str]) -> None:
        self.process, self.said, self.warned = process, said, warned


@contextmanager
def tailing(server: Server, *more: str) -> Iterator[Tail]:
    command = [sys.executable, "-c", CODE, "tail", "--every", "0.2", *more]
    with subprocess.Popen(
        command, cwd=server.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield Tail(process, process.stdout, process.stderr)
        finally:
            process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Fresh(tmp_path / "a", handlers=HANDLER)
    yield server.start()
    server.end()


def test_tail_goes_on_after_a_restart(server: Server) -> None:
    server.post("before")
    with tailing(server) as tail:
        assert " before " in tail.said.readline()
        server.stop()
        assert "waiting for it to come back" in tail.warned.readline()
        server.start()
        server.post("after")
        assert " after " in tail.said.readline()
        tail.process.kill()
        assert tail.warned.read() == ""


def test_tail_ends_when_nobody_reads_it_any_more(server: Server) -> None:
    server.post("before")
    with tailing(server) as tail:
        assert " before " in tail.said.readline()
        tail.said.close()
        assert tail.process.wait(10) == 1
        assert tail.warned.read() == ""


def test_tail_shows_how_an_old_event_fares_that_runs_again(server: Server) -> None:
    server.post("first", type="old")
    server.until_quiet(5)
    with Client(server) as client:
        for n in range(150):
            client.post(f"e{n}")
    with tailing(server, "-n", "1") as tail:
        assert " e149 " in tail.said.readline()
        again = [sys.executable, "-c", CODE, "rerun", "1"]
        subprocess.run(again, cwd=server.folder, env=environment(), check=True, capture_output=True, timeout=30)
        assert "1  demo first  ledger done" in tail.said.readline()
