"""`oncebox tail` beside a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from process.rig import CODE, Fresh, environment


def test_tail_goes_on_after_a_restart(tmp_path: Path) -> None:
    server = Fresh(tmp_path / "a")
    command = [sys.executable, "-c", CODE, "tail", "--every", "0.2"]
    try:
        server.start()
        server.post("before")
        with subprocess.Popen(
            command, cwd=server.folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            try:
                assert " before " in tail.stdout.readline()
                server.stop()
                assert "waiting for it to come back" in tail.stderr.readline()
                server.start()
                server.post("after")
                assert " after " in tail.stdout.readline()
            finally:
                tail.terminate()
            assert tail.stderr.read() == ""
    finally:
        server.end()


def test_tail_ends_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    server = Fresh(tmp_path / "a")
    try:
        server.start()
        server.post("before")
        with subprocess.Popen(
            [sys.executable, "-c", CODE, "tail"],
            cwd=server.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as tail:
            assert tail.stdout is not None
            assert tail.stderr is not None
            try:
                assert " before " in tail.stdout.readline()
                tail.stdout.close()
                assert tail.wait(10) == 1
                assert tail.stderr.read() == ""
            finally:
                tail.kill()
    finally:
        server.end()
