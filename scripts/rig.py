"""The rig of the measurements: folders with a configuration and a file, server processes, the load generator."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

SCRIPTS = Path(__file__).parent
SECRET = "bench-secret-of-no-value"  # noqa: S105  # it signs requests to ourselves only
Figures = dict[str, Any]
# A target of the same name that finishes nothing: what is accepted meanwhile becomes a backlog.
WAITING = """
import asyncio
from oncebox import Event, on

@on("bench", timeout="1h")
async def insert(event: Event) -> None:
    await asyncio.sleep(3600)
"""


class Inbox:
    """A folder with a configuration and a file, for one `oncebox serve` after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "bench.db"
        self.port = free_port()

    def write(self, handlers: str = "", more: str = "") -> None:
        module = f"handlers_{time.time_ns()}"
        named = f'"{module}"' if handlers else ""
        if handlers:
            (self.folder / f"{module}.py").write_text(handlers)
        (self.folder / "litestar.toml").write_text(
            f"handlers = [{named}]\n"
            f'[server]\nport = {self.port}\ngrace = "5s"\n[store]\npath = "{self.db}"\ndurability = "full"\n'
            '[sources.bench]\nid = "body:/id"\ntype = "body:/type"\n'
            'signature = { scheme = "hmac", hash = "sha256", from = "header:X-Signature", encoding = "hex", '
            f'message = "{{body}}" }}\nsecrets = ["plain:{SECRET}"]\n{more}'
        )

    @contextmanager
    def serve(self) -> Iterator[subprocess.Popen[bytes]]:
        """A running server; ended with SIGTERM, and it must end with 0."""
        code = "from oncebox.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--config", str(self.folder / "litestar.toml")]
        with started(command, self.port, self.folder / "server.log") as process:
            yield process
        if process.returncode != 0:
            raise SystemExit(f"the server ended with {process.returncode}:\n{(self.folder / 'server.log').read_text()}")

    def ask(self, sql: str) -> Any:
        """The first value of a query on the file, read-only."""
        with closing(sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)) as db:
            return db.execute(sql).fetchone()[0]


@contextmanager
def started(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that answers on its port; ended by its own id on the way out."""
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS.parent / "app")}
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            wait_for(process, port, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with closing(socket.socket()) as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"the server on port {port} did not start:\n{log.read_text()}")


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def load(port: int, **plan: object) -> Figures:
    """Run the load generator in its own process; any other status than the planned one ends the measurement."""
    with loading(port, **plan) as generator:
        return outcome(generator)


@contextmanager
def loading(port: int, **plan: object) -> Iterator[subprocess.Popen[bytes]]:
    """The load generator at work in its own process; `outcome` waits for its figures. With `aside` it gets only the
    processor time that nobody else wants, as if it ran on another machine."""
    aside = plan.pop("aside", False)
    wanted = json.dumps({"port": port, "secret": SECRET} | plan)
    courtesy = ["nice", "-n", "19"] if aside else []
    command = [*courtesy, sys.executable, str(SCRIPTS / "load.py"), wanted]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def outcome(generator: subprocess.Popen[bytes]) -> Figures:
    """The figures of a generator when it has ended."""
    out, _ = generator.communicate(timeout=600)
    if generator.returncode:
        raise SystemExit(f"the load generator ended with {generator.returncode}")
    figures: Figures = json.loads(out)
    if figures["wrong"]:
        raise SystemExit(f"unexpected answers: {figures['wrong']}")
    return figures


def resident(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise SystemExit(f"no {field} of process {pid}")


def sync_ms(probe: Path) -> float:
    """What this disk takes for one durable write of about a commit's size, just now; the median of a hundred."""
    taken = []
    with probe.open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(16384))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    probe.unlink()
    return round(median(taken) * 1e3, 3)
