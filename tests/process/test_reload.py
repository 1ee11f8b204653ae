"""A configuration that is read again while the server runs."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from process.rig import Fresh, until


@pytest.mark.parametrize("text", ["", "[server]\n", "[sources.demo\n"])
def test_a_file_that_is_not_whole_leaves_everything_as_it_is(tmp_path: Path, text: str) -> None:
    server = Fresh(tmp_path / "a")
    try:
        server.start()
        (server.folder / "litestar.toml").write_text(text)
        server.signal(signal.SIGHUP)
        until(lambda: "reload refused, the old configuration stays" in server.log(), 5)
        assert server.post("e1").status == 202
    finally:
        server.end()
