"""Hasty: a real server process with little patience, so that a test need not wait for half a minute. As a program.

Everything else is what `oncebox serve` runs; only the limits of time are shorter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oncebox import body, corked, patience
from oncebox.cli import main
from process.rig import APP, Server

TESTS = Path(__file__).resolve().parents[1]


class Hasty(Server):
    """A server that soon has enough."""

    def launch(self, *arguments: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
        env |= {"PYTHONPATH": os.pathsep.join([str(APP), str(TESTS)]), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-W", "default", "-m", "process.hasty", "serve", *arguments]
        self._seen = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=subprocess.DEVNULL, stderr=log)
        self.starts += 1


if __name__ == "__main__":
    body.SLOWEST, patience.HEAD, patience.WHOLE, corked.STALL = 1.0, 1.0, 2.0, 2.0
    main()
