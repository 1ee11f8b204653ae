"""The application of the README with the inbox inside it, as uvicorn runs it without knowing of us."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process.rig import APP, Answer, Client, until

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parent / "host"
README = Path(__file__).parents[2] / "README.md"
RUNNING = re.compile(r"Uvicorn running on http://([^ :]+):(\d+) ")


class Host:
    """The example in a folder of its own. `Client` and the commands take it for a server."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.folder = folder
        self.log_file = folder / "host.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.host, self.port = "127.0.0.1", 0

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ONCEBOX_")}
        return kept | {"PYTHONPATH": str(APP), "PYTHONDONTWRITEBYTECODE": "1", "BANK_SECRET": "secret"}

    def launch(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", *arguments]
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=self.environment(), stdout=log, stderr=log)

    def start(self, *arguments: str) -> Host:
        self.launch(*arguments)
        until(lambda: RUNNING.search(self.log()) or not self.alive(), 20, "running")
        found = RUNNING.search(self.log())
        assert found, self.log()
        self.port = int(found[2])
        return self

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        return self.log_file.read_text()

    def stop(self, number: int = signal.SIGTERM, within: float = 20) -> None:
        """uvicorn ends by the signal that it got, when everything is done."""
        assert self.process is not None
        self.process.send_signal(number)
        assert self.process.wait(within) == -number, self.log()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(f"file:{self.folder / 'shop.db'}?mode=ro", uri=True)) as db:
            return db.execute(sql).fetchall()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        with Client(self) as client:  # type: ignore[arg-type]  # it has a host and a port
            return client.request(method, path, body, headers)

    def pay(self, order: int, id: str, **headers: str) -> Answer:
        body = json.dumps({"id": id, "type": "paid", "order": order}).encode()
        signature = hmac.new(b"secret", body, hashlib.sha256).hexdigest()
        return self.ask("POST", "/inbox/in/bank", body, **{"X-Signature": signature, **headers})

    def command(self, *arguments: str) -> Any:
        command = [sys.executable, "-c", "from oncebox.cli import main; main()", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, done
        return json.loads(done.stdout)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "shop")
    yield made
    if made.process is not None and made.alive():
        made.process.kill()
        made.process.wait(10)


@pytest.mark.parametrize("name", ["app.py", "handlers.py", "litestar.toml"])
def test_the_readme_shows_the_application_that_is_run_here(name: str) -> None:
    assert (EXAMPLE / name).read_text().strip() in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_an_application_with_an_inbox_takes_orders_and_payments_once(host: Host, parser: str) -> None:
    host.start("--http", parser, "--loop", "asyncio")
    assert host.ask("POST", "/orders", b"{}").status == 400
    assert host.ask("GET", "/orders/99").status == 404
    placed = host.ask("POST", "/orders", b'{"sku": "hat"}')
    assert (placed.status, json.loads(placed.body)) == (201, {"order": 1})
    first, again = host.pay(1, "p-1"), host.pay(1, "p-1")
    assert (first.status, first.body, first.replayed) == (202, again.body, False)
    assert again.replayed
    assert host.pay(1, "p-2", **{"X-Signature": "00"}).problem == "bad-signature"
    until(lambda: json.loads(host.ask("GET", "/orders/1").body) == {"paid": True, "mailed": True}, 10, "processed")
    assert host.command("lookup", "bank", "p-1")["id"] == "p-1"
    assert host.ask("GET", "/inbox/readyz").status == 200
    assert host.ask("GET", "/nowhere").headers["content-type"] == "application/json"
    assert host.ask("GET", "/inbox/nowhere").problem == "not-found"
    host.stop()
    assert host.rows("select value from meta where name = 'clean'") == [(1,)]
    assert host.rows("select paid, mailed from orders") == [(1, 1)]
    assert "Traceback" not in host.log()


def test_a_killed_application_goes_on_where_it_was(host: Host) -> None:
    host.start()
    for number in range(1, 21):
        assert json.loads(host.ask("POST", "/orders", b'{"sku": "hat"}').body) == {"order": number}
        assert host.pay(number, f"p-{number}").status == 202
    host.stop(signal.SIGKILL)
    host.start()
    until(lambda: host.rows("select count(*) from orders where paid and mailed") == [(20,)], 20, "all processed")
    assert host.pay(1, "p-1").replayed
    host.stop()


def test_several_workers_are_refused_with_the_reason(host: Host) -> None:
    host.launch("--workers", "2")
    assert host.process is not None
    host.process.wait(30)
    assert "Oncebox is one process: of several workers only one could hold the file" in host.log()
    assert "--workers 1" in host.log()


def test_a_body_that_uvicorn_drops_is_refused_and_not_taken_for_an_empty_one(host: Host) -> None:
    host.start("--http", "httptools")
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c"}
    answer = host.pay(1, "p-1", **upgrade)
    assert (answer.status, answer.problem) == (400, "bad-body")
    assert host.rows("select count(*) from events") == [(0,)]


def test_a_configuration_that_is_wrong_stops_the_application_with_its_reason(host: Host) -> None:
    (host.folder / "handlers.py").write_text("import no_such_module\n")
    host.launch()
    assert host.process is not None
    assert host.process.wait(30) != 0
    assert "the inbox at /inbox does not start: handler module handlers cannot be imported" in host.log()
