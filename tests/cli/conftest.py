"""A folder with a configuration, and the commands run in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result

from oncebox.cli import main
from oncebox.store.lock import read_lock
from process import rig
from process.nursery import Born

APP = rig.APP
COMMAND = (sys.executable, "-c", "from oncebox.cli import main; main(prog_name='oncebox')")
TOML = """
[server]
port = 0
[store]
path = "inbox.db"
[sources.demo]
id = "header:Idempotency-Key"
type = "header:X-Event-Type"
unsigned = true
loopback_only = true
[sources.stripe]
preset = "stripe"
secrets = ["plain:a-secret"]
[sources.mail]
internal = true
"""

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("ONCEBOX_")]:
        monkeypatch.delenv(name)
    (tmp_path / "litestar.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """A command in this process; unexpected exceptions are not hidden."""

    def invoke(*args: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, args, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return invoke


def outside(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
    return subprocess.run(
        [*COMMAND, *args],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(APP), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """A running server in the folder; its address."""
    with tempfile.TemporaryFile() as log:
        process = rig.launch(folder, "serve", log=log)
        try:
            yield _address(folder, process, log)
        finally:
            process.terminate()
            process.wait(30)


def _address(folder: Path, process: Born, log: IO[bytes]) -> str:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        lock = read_lock(folder / "inbox.db")
        if lock is not None and lock.held and lock.address:
            return lock.address
        time.sleep(0.02)
    process.kill()
    process.wait(10)
    log.seek(0)
    raise AssertionError(log.read().decode())


def parsed(result: Result) -> Any:
    return json.loads(result.stdout)
