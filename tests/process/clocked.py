"""Clocked: a real server process whose clock stands where a test sets it. As a program: FILE holds its time.

Everything else is what `oncebox serve` runs; only the source of its time is another one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oncebox.cli.inbox import load_config
from oncebox.serve import serve
from process.rig import APP, Server

TESTS = Path(__file__).resolve().parents[1]


class Clocked(Server):
    """A server that is told the time, in unix seconds."""

    def __init__(self, folder: Path, *, at: int, **more: str) -> None:
        super().__init__(folder, **more)
        self._time = folder / "time"
        self._time.touch()
        self.set_clock(at)

    def set_clock(self, at: int) -> None:
        """Everything that comes from now on comes at that second."""
        # Written over, never shortened: the other process may be reading.
        with self._time.open("r+b") as file:
            file.write((at * 1_000_000).to_bytes(8, "little"))

    def launch(self, *arguments: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
        env |= {"PYTHONPATH": os.pathsep.join([str(APP), str(TESTS)]), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-W", "default", "-m", "process.clocked", str(self._time), *arguments]
        self._seen = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=subprocess.DEVNULL, stderr=log)
        self.starts += 1


def main(file: str) -> int:
    """Serve the configuration of this folder by the time in the file."""
    time = os.open(file, os.O_RDONLY)
    return serve(
        lambda: load_config(Path("litestar.toml")), wall=lambda: int.from_bytes(os.pread(time, 8, 0), "little")
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
