"""`oncebox backtest` as a process of its own: what it prints, and what it leaves behind when it is ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from process.rig import CODE, Fresh, environment, until

SLOW = """
import time
from oncebox import on
@on("demo")
def handle(event, db):
    print("hello")
    if event.id == "slow": time.sleep(0.9)
"""


def test_what_handlers_print_in_a_backtest_is_not_in_its_json(tmp_path: Path) -> None:
    server = Fresh(tmp_path / "a", handlers=SLOW)
    try:
        server.start()
        server.post("e1")
        server.until_quiet(10)
        command = [sys.executable, "-c", CODE, "backtest", "--json"]
        run = subprocess.run(command, cwd=server.folder, env=environment(), capture_output=True, text=True, check=False)
        assert "hello" in run.stderr
        assert json.loads(run.stdout)["done"] == 1
    finally:
        server.end()


def test_a_backtest_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    server = Fresh(tmp_path / "a", handlers=SLOW)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    try:
        server.start()
        for id in ("slow", "e1"):
            server.post(id)
        server.until_quiet(10)
        command = [sys.executable, "-c", CODE, "backtest"]
        for number in (signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen(command, cwd=server.folder, env=environment(TMPDIR=str(scratch)))
            until(lambda: any(scratch.iterdir()), 10)
            time.sleep(0.1)
            process.send_signal(number)
            assert process.wait(10) != 0
            assert not list(scratch.iterdir())
    finally:
        server.end()
