"""The README and the code say the same; `ONCEBOX_WRITE_README=1 scripts/test tests/test_readme.py` makes it so."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from oncebox.cli import SECTIONS, main
from oncebox.config import print_defaults
from oncebox.problem import TITLES

README = Path(__file__).parents[1] / "README.md"


def settings() -> str:
    return f"```toml\n{print_defaults().strip()}\n```"


def commands() -> str:
    context = click.Context(main)
    lines = ["| command | what it does |", "|---|---|"]
    for group, names in SECTIONS.items():
        for name in names:
            command = main.get_command(context, name)
            assert command is not None
            lines.append(f"| `oncebox {name}` ({group.lower()}) | {command.get_short_help_str(120)} |")
    return "\n".join(lines)


def problems() -> str:
    lines = ["| `urn:oncebox:problem:…` | means |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{slug}` | {title} |" for slug, title in sorted(TITLES.items()))])


GENERATED: dict[str, Callable[[], str]] = {"settings": settings, "commands": commands, "problems": problems}


@pytest.mark.parametrize("name", GENERATED)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    text = README.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
    found = pattern.search(text)
    assert found is not None, f"README.md has no part between <!-- {name} --> and <!-- /{name} -->"
    wanted = GENERATED[name]()
    if os.environ.get("ONCEBOX_WRITE_README"):
        README.write_text(pattern.sub(lambda m: f"{m[1]}{wanted}{m[2]}", text), encoding="utf-8")
        return
    assert found[0] == f"<!-- {name} -->\n{wanted}\n<!-- /{name} -->"


def test_every_path_of_the_api_is_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    source = (README.parent / "app/oncebox/operate").glob("*.py")
    paths = {path for file in source for path in re.findall(r'@(?:get|post|delete)\(\s*"(/[^"]*)"', file.read_text())}
    missing = {path for path in paths if re.sub(r":\w+}", "}", path) not in text}
    assert not missing
