"""What the reading of requests is built on is there, or the start says what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import httptools
import pytest

from oncebox.beneath import FIELDS, METHODS, HttpToolsProtocol, RequestResponseCycle, missing

ROOT = Path(__file__).parent.parent
# What each of these lets us find in it is no promise of its authors, so it is known of the releases that were tested.
INTERNALS = ("uvicorn", "httptools")


def test_nothing_is_missing_from_the_releases_that_are_installed() -> None:
    assert missing() == []


def test_what_is_missing_is_named() -> None:
    methods = {**METHODS, httptools.HttpRequestParser: ("feed_data", "feed_nothing")}
    fields = {**FIELDS, HttpToolsProtocol: ("flow", "tide"), RequestResponseCycle: ("spokes",)}
    expected = ["HttpRequestParser.feed_nothing", "HttpToolsProtocol.tide", "RequestResponseCycle.spokes"]
    assert missing(methods, fields) == expected


@pytest.mark.parametrize(
    "change",
    [
        "del module.STATUS_LINE",
        "del module.HttpToolsProtocol.on_response_complete",
        "del module.HttpToolsProtocol._unset_keepalive_if_required",
        "module.RequestResponseCycle.__init__ = lambda self: None",
    ],
)
def test_a_start_on_another_uvicorn_says_so_in_one_line(tmp_path: Path, change: str) -> None:
    code = f"import uvicorn.protocols.http.httptools_impl as module; {change}; from oncebox.cli import main; main()"
    (tmp_path / "litestar.toml").write_text('[store]\npath = "inbox.db"\n')
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"uvicorn \d+\.\d+.*install the ones in scripts/requirements\.txt", done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "inbox.db").exists()


@pytest.mark.parametrize("name", INTERNALS)
def test_no_release_older_than_the_tested_one_is_allowed(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (lowest,) = [one.removeprefix(f"{name}>=") for one in project["dependencies"] if one.startswith(f"{name}>=")]
    lock = (ROOT / "scripts" / "requirements.txt").read_text()
    assert f"\n{name}=={lowest}" in f"\n{lock}"
