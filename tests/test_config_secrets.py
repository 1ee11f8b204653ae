"""Secrets: where they come from, and that they are never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from oncebox.config import Config, load
from oncebox.errors import ConfigError
from oncebox.secret import Secret, parse_env

SIGNED = 'signature = { scheme = "hmac" }\nid = "header:X-Id"\n'


def read(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Config:
    file = folder / "litestar.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, environ=environ or {}, overrides={})


def refusal(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text, environ)
    return str(caught.value).removeprefix(f"{folder / 'litestar.toml'}: ")


def partner(secrets: str, above: str = "") -> str:
    return f"{above}\n[sources.partner]\n{SIGNED}secrets = {secrets}\n"


def test_secrets_keep_the_order_in_which_they_are_written(tmp_path: Path) -> None:
    environ = {"NEW": "second", "OLD": "first"}
    found = read(tmp_path, partner('["env:NEW", "env:OLD"]'), environ).sources["partner"].secrets
    assert found == (Secret("env:NEW", "second"), Secret("env:OLD", "first"))


def test_env_file_goes_before_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=of the file\n")
    text = partner('["env:KEY", "env:ONLY"]', 'env_file = ".env"')
    found = read(tmp_path, text, {"KEY": "of the environment", "ONLY": "there"}).sources["partner"].secrets
    assert [secret.value for secret in found] == ["of the file", "there"]


@pytest.mark.parametrize(
    ("content", "value"), [("abc\n", "abc"), ("abc\r\n", "abc"), ("abc\n\n", "abc\n"), (" a ", " a ")]
)
def test_a_file_secret_loses_one_newline_at_its_end_and_nothing_else(tmp_path: Path, content: str, value: str) -> None:
    (tmp_path / "key").write_bytes(content.encode())
    assert read(tmp_path, partner('["file:key"]')).sources["partner"].secrets == (Secret("file:key", value),)


@pytest.mark.parametrize(
    ("environ", "state"), [({}, "not set"), ({"PARTNER": ""}, "empty"), ({"PARTNER": " \t\n"}, "empty")]
)
def test_an_unset_empty_or_blank_variable_stops_the_start(tmp_path: Path, environ: dict[str, str], state: str) -> None:
    assert refusal(tmp_path, partner('["env:PARTNER"]'), environ) == (
        f"sources.partner.secrets[0]: environment variable PARTNER is {state}; "
        "name an env_file that has it, or set it before the start"
    )


def test_the_refusal_of_an_unset_variable_names_the_env_file_it_is_missing_from(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# nothing\n")
    assert refusal(tmp_path, partner('["env:PARTNER"]', 'env_file = ".env"')) == (
        "sources.partner.secrets[0]: environment variable PARTNER is not set; "
        "put PARTNER=… into .env or set it before the start"
    )


def test_an_empty_or_missing_or_binary_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "empty is empty; an empty secret would let anybody in" in refusal(tmp_path, partner('["file:empty"]'))
    assert "cannot be read: No such file or directory" in refusal(tmp_path, partner('["file:nowhere"]'))
    assert "is not UTF-8 text; store binary keys as hex or base64" in refusal(tmp_path, partner('["file:binary"]'))
    assert 'after "file:" comes a path' in refusal(tmp_path, partner('["file:"]'))


def test_an_empty_plain_secret_stops_the_start(tmp_path: Path) -> None:
    assert refusal(tmp_path, partner('["plain: "]')) == (
        "sources.partner.secrets[0]: the text after plain: is empty; an empty secret would let anybody in"
    )


def test_a_plain_secret_works_and_is_warned_about(tmp_path: Path) -> None:
    config = read(tmp_path, partner('["plain:for now"]'))
    (warning,) = config.warnings
    assert config.sources["partner"].secrets[0].value == "for now"
    assert warning.startswith(
        "sources.partner.secrets[0]: the secret stands in the file itself (plain:); keep it in env:"
    )


@pytest.mark.parametrize("pasted", ['["whsec_hunter2"]', '"whsec_hunter2"', '[["whsec_hunter2"]]', "{ a = 'hunter2' }"])
def test_a_secret_pasted_in_the_wrong_form_is_refused_without_being_shown(tmp_path: Path, pasted: str) -> None:
    message = refusal(tmp_path, partner(pasted))
    assert message.startswith("sources.partner.secrets")
    assert "hunter2" not in message


def test_no_secret_shows_in_any_printed_form_of_the_configuration(tmp_path: Path) -> None:
    text = (
        '[tokens]\nadmin = "env:X1"\n[callers]\nacme = "env:X2"\n[alerts]\nurl = "https://hooks.example/hunter2"\n'
        '[targets.shop]\nurl = "http://127.0.0.1"\nsecret = "env:X3"\n' + partner('["plain:hunter2"]')
    )
    config = read(tmp_path, text, {"X1": "hunter2-a", "X2": "hunter2-b", "X3": "hunter2-c"})
    assert config.alerts.url is not None
    assert config.alerts.url.value == "https://hooks.example/hunter2"
    for shape in (repr(config), str(config), f"{config.tokens}", pretty_repr(config), "\n".join(config.warnings)):
        assert "hunter2" not in shape
    assert repr(config.tokens["admin"].secret) == "Secret(env:X1)"


def test_a_missing_env_file_is_told_only_when_a_secret_asks_for_it(tmp_path: Path) -> None:
    assert read(tmp_path, 'env_file = ".env"\n').warnings == ()
    config = read(tmp_path, partner('["env:KEY"]', 'env_file = ".env"'), {"KEY": "there"})
    assert config.warnings == (
        f"env_file: {tmp_path / '.env'} does not exist; every env: secret came from the environment",
    )


def test_a_broken_env_file_is_named_with_its_line_but_not_its_content(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\n\nhunter2 without an equals sign\n")
    message = refusal(tmp_path, 'env_file = ".env"\n')
    assert message == f"env_file: {tmp_path / '.env'}: line 3 is not KEY=VALUE"


def test_env_files_know_quotes_comments_export_and_several_lines() -> None:
    text = (
        "# comment\n\nA=plain\n  export B = spaced out  # comment\nC='single $A # kept'  # comment\n"
        'D="two\\nlines \\"quoted\\""\r\nE=\nF= # nothing\nG=a#b\nH="-----BEGIN\nKEY-----"\nI=x=y=='
    )
    assert parse_env(text) == {
        "A": "plain",
        "B": "spaced out",
        "C": "single $A # kept",
        "D": 'two\nlines "quoted"',
        "E": "",
        "F": "",
        "G": "a#b",
        "H": "-----BEGIN\nKEY-----",
        "I": "x=y==",
    }


@pytest.mark.parametrize(
    ("text", "line"), [("A", 1), ("A=1\n'x'=2", 2), ('A="open\nB=2', 1), ("1A=x", 1), ("A='x'y", 1)]
)
def test_env_files_name_the_line_that_cannot_be_read(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=rf"^line {line} is not KEY=VALUE$"):
        parse_env(text)


@settings(max_examples=1000)
@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), st.text(max_size=30), max_size=5))
def test_any_value_in_double_quotes_reads_back(values: dict[str, str]) -> None:
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in values.items()}
    assert parse_env("".join(f'{name}="{value}"\n' for name, value in escaped.items())) == values


@settings(max_examples=1000)
@given(st.text(alphabet="AB=\"' #\\\n\r\t$é", max_size=40))
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    assert all(name.isidentifier() for name in parsed(text))


def parsed(text: str) -> dict[str, str]:
    try:
        return parse_env(text)
    except ValueError as error:
        return {re.sub(r"^line [1-9][0-9]* is not KEY=VALUE$", "refused", str(error)): ""}
