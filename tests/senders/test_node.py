"""The libraries for JavaScript: pinned like all others, and asked through a process that ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from senders import node

PACKAGE: dict[str, Any] = json.loads((node.FOLDER / "package.json").read_text("utf-8"))
LOCK: dict[str, Any] = json.loads((node.FOLDER / "package-lock.json").read_text("utf-8"))
PACKAGES = {path: package for path, package in LOCK["packages"].items() if path}


def test_the_lock_names_no_address_and_every_package_has_its_hash() -> None:
    assert "://" not in json.dumps(LOCK)
    assert [path for path, package in PACKAGES.items() if not package["integrity"].startswith("sha512-")] == []


def test_what_is_asked_for_is_what_is_pinned() -> None:
    assert LOCK["packages"][""]["dependencies"] == PACKAGE["dependencies"]
    pinned = {name: PACKAGES[f"node_modules/{name}"]["version"] for name in PACKAGE["dependencies"]}
    assert pinned == PACKAGE["dependencies"]


@pytest.mark.skipif(bool(node.lacking()), reason=node.lacking())
def test_an_answer_is_the_librarys_own() -> None:
    # The example of GitHub's own documentation.
    made = node.ask("octokit", "sign", "It's a Secret to Everybody", b"Hello, World!")
    assert made == "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
