"""Commands that set up and check."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.conftest import APP, Run, outside, parsed
from oncebox.accept.presets import PRESETS
from oncebox.cli.init import contents
from oncebox.config import load


def test_init_writes_a_folder_that_checks_and_never_overwrites(folder: Path, run: Run) -> None:
    new = folder / "new"
    said = run("init", "new", "--for", "stripe,github").stdout
    assert said.count("wrote") == 4
    assert "oncebox serve" in said
    filled = (new / ".env.example").read_text().replace("_SECRET=", "_SECRET=something")
    (new / ".env").write_text(filled)
    checked = outside(new, "check")
    assert checked.returncode == 0, checked.stderr
    assert "stripe" in checked.stdout
    assert "greet" in checked.stdout
    (new / "handlers.py").write_text("mine")
    assert run("init", "new").stdout.count("kept") == 4
    assert (new / "handlers.py").read_text() == "mine"


def test_init_for_an_unknown_sender_writes_nothing(folder: Path, run: Run) -> None:
    assert 'did you mean "github"' in run("init", "new", "--for", "githup", code=2).stderr
    assert not (folder / "new").exists()


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_first_configuration_for_any_sender_can_be_read(tmp_path: Path, name: str) -> None:
    files = contents("x", [name])
    path = tmp_path / "litestar.toml"
    path.write_text(files["litestar.toml"])
    variable = f"{name.upper()}_SECRET"
    assert f"{variable}=" in files[".env.example"]
    config = load(path, environ={variable: "s"}, overrides={})
    assert config.sources.keys() == {"demo", name.replace("_", "-")}


def test_check_tells_what_would_run_and_where_to_look_next(run: Run) -> None:
    result = run("check")
    assert "the configuration is good" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("looking for ")
    assert "sources.stripe: nothing listens" in result.stdout
    assert "a-secret" not in result.stdout
    found = parsed(run("check", "--json"))
    assert [one["name"] for one in found["sources"]] == ["demo", "stripe"]
    assert found["sources"][1]["secrets"] == ["plain:…"]


def test_check_refuses_what_serve_would_refuse(folder: Path, run: Run) -> None:
    with (folder / "litestar.toml").open("a") as file:
        file.write('[sources.other]\npreset = "strip"\nsecrets = ["plain:x"]\n')
    assert "did you mean" in run("check", code=2).stderr
    (folder / "litestar.toml").write_text("hanlders = []")
    assert 'did you mean "handlers"' in run("check", code=2).stderr
    assert "no such file" in run("check", "--config", "nowhere.toml", code=2).stderr


def test_check_prints_defaults_and_presets_as_toml(run: Run) -> None:
    assert tomllib.loads(run("check", "--print-defaults").stdout)["server"]["port"] == 8640
    assert tomllib.loads(run("check", "--preset", "standard-webhooks").stdout)["sources"]["standard_webhooks"]
    assert "did you mean" in run("check", "--preset", "githb", code=2).stderr


def test_a_command_that_is_not_used_imports_nothing_heavy(folder: Path) -> None:
    code = "import sys, oncebox.cli; oncebox.cli.main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(APP)}, capture_output=True, text=True, check=True
    ).stdout
    for heavy in ("litestar", "uvicorn", "aiosqlite", "sqlite3", "http.client", "rich"):
        assert f"'{heavy}'" not in loaded


@pytest.mark.process
@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (lambda folder: (folder / "litestar.toml").write_text("[server]\nprot = 1"), 2, 'did you mean "port"'),
        (lambda folder: (folder / "inbox.db.token").write_text(""), 2, "remove the file"),
        (
            lambda folder: (folder / "inbox.db").write_bytes(b"something else entirely" * 99),
            1,
            "not an SQLite database",
        ),
    ],
)
def test_a_start_that_cannot_be_ends_at_once_with_one_sentence(
    folder: Path, spoil: Callable[[Path], object], code: int, words: str
) -> None:
    spoil(folder)
    ended = outside(folder, "serve")
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.process
def test_a_second_server_on_the_same_file_is_refused(folder: Path, server: str) -> None:
    ended = outside(folder, "serve")
    assert ended.returncode == 4
    assert server in ended.stderr
