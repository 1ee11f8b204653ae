"""Commands that set up and check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from accept.test_presets import secret_as_needed
from cli.conftest import APP, Run, outside, parsed
from oncebox.accept.doors import compile_doors
from oncebox.accept.presets import PRESETS
from oncebox.cli.starter import contents
from oncebox.config import load
from oncebox.errors import ConfigError
from oncebox.secret import parse_env


def test_init_writes_a_folder_that_checks_and_never_overwrites(folder: Path, run: Run) -> None:
    new = folder / "new"
    said = run("init", "new", "--for", "stripe,github").stdout
    assert said.count("wrote") == 5
    assert "oncebox serve" in said
    filled = (new / ".env.example").read_text().replace("_SECRET=", "_SECRET=something")
    (new / ".env").write_text(filled)
    checked = outside(new, "check")
    assert checked.returncode == 0, checked.stderr
    assert "stripe" in checked.stdout
    assert "greet" in checked.stdout
    (new / "handlers.py").write_text("mine")
    assert run("init", "new").stdout.count("kept") == 5
    assert (new / "handlers.py").read_text() == "mine"


def test_the_first_test_of_handlers_passes(folder: Path, run: Run) -> None:
    run("init", "new", "--for", "stripe")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    environ = {**os.environ, "PYTHONPATH": str(APP), "PYTHONDONTWRITEBYTECODE": "1"}
    tried = subprocess.run(command, cwd=folder / "new", env=environ, capture_output=True, text=True, check=False)
    assert "1 passed" in tried.stdout, tried.stdout + tried.stderr


def test_init_for_an_unknown_sender_writes_nothing(folder: Path, run: Run) -> None:
    assert 'did you mean "github"' in run("init", "new", "--for", "githup", code=2).stderr
    assert not (folder / "new").exists()


def filled(example: str, name: str) -> dict[str, str]:
    """The variables of an example with values such as this sender's."""
    variables = parse_env(example)
    values = dict.fromkeys(variables, "a-text-of-ours")
    return {**values, f"{name.upper()}_SECRET": secret_as_needed(name)}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_first_folder_for_any_sender_is_right_once_its_example_is_filled_in(tmp_path: Path, name: str) -> None:
    files = contents("x", [name])
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    path = tmp_path / "litestar.toml"
    config = load(path, environ=filled(files[".env.example"], name), overrides={})
    assert config.sources.keys() == {"demo", name.replace("_", "-")}
    doors = compile_doors(config)
    assert not any(door.needs_token for door in doors.values())
    assert re.search(rf"(?m)^# {name}: .+\n{name.upper()}_SECRET=$", files[".env.example"])
    with pytest.raises(ConfigError, match=rf"{name.upper()}_SECRET is"):
        load(path, environ={}, overrides={})


def test_the_first_folder_asks_for_what_only_the_owner_knows() -> None:
    files = contents("x", ["meta", "google-pubsub", "paypal", "twilio"])
    assert 'verify_token = "env:META_VERIFY_TOKEN"' in files["litestar.toml"]
    assert "META_VERIFY_TOKEN=" in files[".env.example"]
    assert "iam.gserviceaccount.com" in files["litestar.toml"]
    assert 'configured_id = "WEBHOOK-ID"' in files["litestar.toml"]
    assert '#url = "https://hooks.example.com/in/twilio"' in files["litestar.toml"]


def test_init_names_each_sender_once_and_says_what_comes_next(folder: Path, run: Run) -> None:
    said = run("init", "a new one", "--for", "github, github,standard_webhooks,standard-webhooks").stdout
    assert "next: cd 'a new one' && cp .env.example .env && $EDITOR .env && oncebox serve" in said
    raw = tomllib.loads((folder / "a new one" / "litestar.toml").read_text())
    assert raw["sources"].keys() == {"demo", "github", "standard-webhooks"}


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


def test_check_names_file_and_source_of_what_is_misspelt_in_them(folder: Path, run: Run) -> None:
    config = folder / "litestar.toml"
    good = config.read_text()
    config.write_text(f'{good}[sources.a]\npreset = "strip"\nsecrets = ["plain:x"]\n')
    said = run("check", code=2).stderr
    assert f'{config}: sources.a.preset: "strip" is not known; did you mean "stripe"?' in said
    config.write_text(
        f'{good}[sources.a]\nid = "haeder:X-Id"\nunsigned = true\n[sources.b]\nid = "bdy:/id"\nunsigned = true\n'
    )
    said = run("check", code=2).stderr
    assert f'{config}: sources.a: "haeder:X-Id" is not where a text can be; did you mean "header:X-Id"?' in said
    assert '  sources.b: "bdy:/id" is not where a text can be; did you mean "body:/id"?' in said
    config.write_text(f'{good}[sources.a]\nid = "header:X Id"\nunsigned = true\n')
    assert '"X Id" cannot be the name of a header' in run("check", code=2).stderr


def test_check_says_what_nothing_will_ever_reach(folder: Path, run: Run) -> None:
    config = folder / "litestar.toml"
    route = '[targets.t]\ncommand = ["./nope.sh"]\n[[routes]]\nsource = "stripee"\nto = "t"\n'
    config.write_text(f'handlers = ["reach_idle", "reach_busy"]\n{config.read_text()}{route}')
    (folder / "reach_idle.py").write_text("def record(event, db): pass\n")
    handlers = "from oncebox import on\n@on('demoo')\ndef a(event): pass\n@on('shop-*')\ndef b(event): pass\n"
    (folder / "reach_busy.py").write_text(handlers + "@on('receipts')\ndef c(event): pass\n")
    said = run("check").stdout
    sys.modules.pop("reach_idle")
    sys.modules.pop("reach_busy")
    assert "note: handlers: reach_idle has nothing decorated in it" in said
    assert 'no source is called "demoo"; did you mean "demo"?' in said
    assert 'no source fits "shop-*"; there are: demo, stripe, mail' in said
    assert 'no source is called "receipts", so it is an internal one' in said
    assert 'note: routes[0].source: no source is called "stripee"; did you mean "stripe"?' in said
    assert f"note: targets.t.command: there is no {folder / 'nope.sh'}" in said


def test_a_decorator_without_parentheses_and_a_method_stop_check(folder: Path, run: Run) -> None:
    config = folder / "litestar.toml"
    config.write_text(f'handlers = ["bare_handlers"]\n{config.read_text()}')
    (folder / "bare_handlers.py").write_text("from oncebox import on\n@on\ndef a(event): pass\n")
    assert '@on("stripe")' in run("check", code=2).stderr
    (folder / "bare_handlers.py").write_text(
        "from oncebox import on\nclass A:\n    @on('demo')\n    def a(self, event): ...\n"
    )
    assert "is a method of A" in run("check", code=2).stderr


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


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", ""], '--host: "" is not a text'),
        (["--db", ":memory:"], '":memory:" would keep nothing'),
        (["--db", ""], "is a folder"),
        (["--db", "file:x.db"], 'a "file:" URI is not understood'),
        (["--db", "."], "is a directory"),
    ],
)
def test_what_is_no_place_to_serve_is_refused_before_anything_is_made(
    folder: Path, arguments: list[str], words: str
) -> None:
    ended = outside(folder, "serve", *arguments)
    assert ended.returncode == 2, ended.stderr
    assert words in ended.stderr
    assert [path.name for path in folder.iterdir()] == ["litestar.toml"]
