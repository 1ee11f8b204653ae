"""Clocked: a real server process whose clock stands where a test sets it.

Everything else is what `oncebox serve` runs; only the source of its time is another one.
"""

from __future__ import annotations

import os
from pathlib import Path

from oncebox.cli.inbox import load_config
from oncebox.serve import serve
from process.rig import Server

TESTS = Path(__file__).resolve().parents[1]
CODE = f"import sys; sys.path.append({str(TESTS)!r}); from process.clocked import main; sys.exit(main(sys.argv[1]))"


class Clocked(Server):
    """A server that is told the time, in unix seconds."""

    code = CODE

    def __init__(self, folder: Path, *, at: int, **more: str) -> None:
        super().__init__(folder, **more)
        self._time = folder / "time"
        self.words = (str(self._time),)
        self._time.touch()
        self.set_clock(at)

    def set_clock(self, at: int) -> None:
        """Everything that comes from now on comes at that second."""
        # Written over, never shortened: the other process may be reading.
        with self._time.open("r+b") as file:
            file.write((at * 1_000_000).to_bytes(8, "little"))


def main(file: str) -> int:
    """Serve the configuration of this folder by the time in the file."""
    time = os.open(file, os.O_RDONLY)
    return serve(
        lambda: load_config(Path("litestar.toml")), wall=lambda: int.from_bytes(os.pread(time, 8, 0), "little")
    )
