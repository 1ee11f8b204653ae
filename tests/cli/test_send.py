"""Requests that are made as a sender would make them."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner

from cli.conftest import Run, parsed
from oncebox.accept.doors import compile_door
from oncebox.accept.incoming import Incoming
from oncebox.accept.presets import PRESETS, show_preset
from oncebox.accept.signature import parse_signature
from oncebox.cli import main
from oncebox.cli.craft import craft
from oncebox.cli.inbox import load_config
from oncebox.cli.send import prepare, tampered
from oncebox.errors import ConfigError, Rejected

ADDRESS = "http://127.0.0.1:8640"
SECRETS = {
    "utf8": "secret",
    "hex": "a1" * 32,
    "base64": "c2VjcmV0",
    "whsec": "whsec_c2VjcmV0LXNlY3JldA==",
    "sha1": "secret",
    "sha1(second)": "public|private",
}


def sendable(name: str) -> bool:
    """Signed with a shared secret, in a header."""
    spec = PRESETS[name].signature
    return spec is not None and spec.scheme in ("hmac", "token") and spec.sig.from_.startswith(("header", "basic"))


def source_toml(name: str) -> str:
    preset = PRESETS[name]
    assert preset.signature is not None
    secret = "user:pass" if preset.signature.sig.from_ == "basic" else SECRETS[preset.signature.key]
    missing = '\non_missing_id = "unique"' if preset.id is None else ""
    return f'[sources.it]\npreset = "{name}"\nsecrets = ["plain:{secret}"]{missing}\n'


def received(path: str, headers: dict[str, str], body: bytes) -> Incoming:
    lowered = {name.lower(): value for name, value in headers.items()}
    query, arrived = path.partition("?")[2], time.time_ns() // 1000
    return Incoming("POST", f"{ADDRESS}{path}", query, lowered, frozenset(), body, body, arrived)


@pytest.mark.parametrize("name", sorted(filter(sendable, PRESETS)))
def test_what_is_sent_for_a_preset_is_accepted_by_its_door(folder: Path, name: str) -> None:
    (folder / "litestar.toml").write_text(source_toml(name))
    config = load_config(None)
    door = compile_door("it", config.sources["it"], 1 << 20)
    path, headers, body = prepare(config, "it", ADDRESS, None, "4711", None)
    incoming = received(path, headers, body)
    door.verify(incoming)
    [arrival] = door.arrivals(incoming, "hmac")
    assert b"4711" in arrival.id.encode() + arrival.decoded


def test_a_changed_body_is_refused(folder: Path) -> None:
    config = load_config(None)
    door = compile_door("stripe", config.sources["stripe"], 1 << 20)
    path, headers, body = prepare(config, "stripe", ADDRESS, None, None, None)
    assert json.loads(tampered(body)) != json.loads(body)
    with pytest.raises(Rejected):
        door.verify(received(path, headers, tampered(body)))


@pytest.mark.parametrize("body", [b"", b"{}", b"1", b"\xff\xfe"])
def test_a_tampered_body_is_always_another_one(body: bytes) -> None:
    assert tampered(body) != body


def test_a_source_that_nobody_can_send_to_is_named(folder: Path) -> None:
    config = load_config(None)
    with pytest.raises(ConfigError, match="internal"):
        prepare(config, "mail", ADDRESS, None, None, None)
    with pytest.raises(ConfigError, match='did you mean "stripe"'):
        prepare(config, "strip", ADDRESS, None, None, None)


def test_an_id_goes_where_the_extractor_looks() -> None:
    made = craft("body:/event/items/0/id", "body:/event/kind", id="1", type="x", body=None).finish()
    assert json.loads(made.body) == {"event": {"items": [{"id": "1"}], "kind": "x"}}
    made = craft("query:id", "header:X-Type", id="1", type=None, body=None).finish()
    assert (made.query, made.headers["X-Type"]) == ("id=1", "test")
    made = craft("form:payload json:/trigger_id", "form:payload json:/type", id="1", type="x", body=None).finish()
    assert json.loads(parse_qs(made.body.decode())["payload"][0]) == {"trigger_id": "1", "type": "x"}
    made = craft("header:X-Id percent", None, id="a/b", type=None, body=None).finish()
    assert made.headers["X-Id"] == "a%2Fb"
    made = craft("form:headers mime:Message-ID", None, id="<1@x>", type=None, body=None).finish()
    assert parse_qs(made.body.decode())["headers"] == ["Message-ID: <1@x>\r\n\r\n"]


@pytest.mark.parametrize(
    ("batch", "body"),
    [("array", b'[{"id":"1"}]'), ("array:/a/b", b'{"a":{"b":[{"id":"1"}]}}'), ("ndjson", b'{"id":"1"}')],
)
def test_a_batch_has_the_event_as_its_only_item(batch: str, body: bytes) -> None:
    assert craft("body:/id", None, id="1", type=None, body=None, batch=batch).finish().body == body


def test_events_in_a_form_field_and_around_an_envelope() -> None:
    made = craft("body:/_id", None, id="1", type=None, body=None, batch="form:mandrill_events").finish()
    assert parse_qs(made.body.decode()) == {"mandrill_events": ['[{"_id": "1"}]']}
    made = craft("body:/id", "envelope:/kind", id="1", type="x", body=None, batch="array:/events").finish()
    assert json.loads(made.body) == {"kind": "x", "events": [{"id": "1"}]}


def test_a_cloud_event_is_sent_whole() -> None:
    id = ("cloudevent:source", "cloudevent:id")
    sent = craft(id, "cloudevent:type", id="1", type="x", body=None, batch="cloudevents").finish()
    assert sent.headers["Content-Type"] == "application/cloudevents+json"
    assert json.loads(sent.body) == {"specversion": "1.0", "source": "1", "id": "1", "type": "x"}


def test_a_given_body_stays_byte_for_byte_unless_something_must_be_put_into_it() -> None:
    given = b'{ "id" : "mine",\n "n": 1.0 }'
    assert craft("body:/id", "body:/type", id="1", type=None, body=given).finish().body == given
    assert craft("header:X-Id", None, id="1", type=None, body=b"\xff").finish().body == b"\xff"
    forced = craft("body:/id", None, id="1", type=None, body=given, force_id=True).finish().body
    assert json.loads(forced) == {"id": "1", "n": 1.0}
    filled = craft("body:/id", None, id="1", type=None, body=b'{"n":2}').finish().body
    assert json.loads(filled) == {"n": 2, "id": "1"}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_printed_preset_is_toml_that_says_the_same(name: str) -> None:
    row = tomllib.loads(show_preset(name))["sources"][name]
    preset = PRESETS[name]
    assert row.get("id") == (list(preset.id) if isinstance(preset.id, tuple) else preset.id)
    if preset.signature is not None:
        assert parse_signature(row["signature"], "here") == preset.signature


@pytest.mark.process
def test_twenty_at_once_are_one_event_and_the_same_answer(run: Run, server: str) -> None:
    result = run("send", "stripe", "--type", "invoice.paid", "--times", "20", "--concurrent", "20", "--json")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["replayed"] for answer in answers].count(False) == 1
    assert len({(answer["status"], answer["body"]) for answer in answers}) == 1
    assert parsed(run("stats", "--json"))["sources"]["stripe"]["received"] == 1


@pytest.mark.process
def test_a_sent_event_is_accepted_and_a_tampered_one_refused(folder: Path, run: Run, server: str) -> None:
    (folder / "body.bin").write_bytes(b"\x00exact")
    assert run("send", "demo", "body.bin", "--id", "a").stdout.startswith("202            ")
    assert run("send", "demo", "--body", "other", "--id", "a").stdout.startswith("202  replayed")
    piped = CliRunner().invoke(main, ["send", "demo", "-", "--id", "b"], input=b"piped")
    assert piped.exit_code == 0
    assert run("show", "1", "--body").stdout_bytes == b"\x00exact"
    assert run("show", "2", "--body").stdout_bytes == b"piped"
    assert "bad-signature" in run("send", "stripe", "--tamper").stdout


def test_sending_needs_a_server(run: Run) -> None:
    assert "no server has this file open" in run("send", "demo", code=3).stderr
    assert "FILE or --body" in run("send", "demo", "litestar.toml", "--body", "y", code=2).stderr
