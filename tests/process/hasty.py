"""Hasty: a real server process with little patience, so that a test need not wait for half a minute.

Everything else is what `oncebox serve` runs; only the limits of time are shorter.
"""

from __future__ import annotations

from pathlib import Path

from oncebox import body, corked, patience
from oncebox.cli import main
from oncebox.store import migrations, writer
from process.rig import Server

TESTS = Path(__file__).resolve().parents[1]
CODE = f"import sys; sys.path.append({str(TESTS)!r}); from process.hasty import run; run()"


class Hasty(Server):
    """A server that soon has enough."""

    code = CODE


def run() -> None:
    """The program."""
    migrations.PATIENCE, writer.BUSY_PATIENCE = 0.5, 0.5
    body.SLOWEST, patience.HEAD, patience.WHOLE, corked.STALL = 1.0, 1.0, 2.0, 2.0
    main()
