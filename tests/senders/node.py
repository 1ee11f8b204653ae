"""Node: libraries that senders publish for JavaScript only, asked through one process that stays."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "javascript"


@functools.cache
def lacking() -> str:
    """What there is not to ask them; empty when they can be asked."""
    if shutil.which("node") is None:
        return "node is not installed"
    return (
        "" if (FOLDER / "node_modules" / ".installed").exists() else "their packages are not installed (scripts/test)"
    )


@functools.cache
def _process() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(["node", "witness.mjs"], cwd=FOLDER, stdin=pipe, stdout=pipe, text=True, encoding="utf-8")


def ask(library: str, act: str, secret: str, body: bytes, headers: dict[str, str] | None = None) -> Any:
    """What a library says: to `sign`, a signature; to `judge`, whether it takes the request."""
    process, named = _process(), {name.lower(): value for name, value in (headers or {}).items()}
    question = {"library": library, "act": act, "secret": secret, "body": body.decode(), "headers": named}
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"{library} has failed at {question}"
    return json.loads(answer)


def close() -> None:
    """End the process, if it was needed."""
    if _process.cache_info().currsize:
        _process().communicate(timeout=10)
        _process.cache_clear()
