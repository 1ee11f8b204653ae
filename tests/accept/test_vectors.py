"""Recorded requests through everything that a request goes through: an inbox with a store, and `explain`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from accept.recordings import NAMES, body_of, secret_of, signature_of, source_of, wanted
from accept.signed import URL, VECTORS
from oncebox.accept.doors import compile_door
from oncebox.accept.explain import explain, incoming_of, read_asked
from oncebox.accept.inbox import Answer, Inbox, Request
from oncebox.accept.incoming import read_headers
from oncebox.accept.presets import PRESETS
from oncebox.cli import main
from oncebox.config import MissingId, Source
from oncebox.secret import Secret
from oncebox.store.sqlite import open_store

LIMIT = 5 << 20


def line_of(vector: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded request as `explain` reads it."""
    line = {key: vector[key] for key in ("method", "headers")}
    return line | {
        "source": NAMES[vector["id"]],
        "url": vector.get("url", URL),
        "body_base64": base64.b64encode(body_of(vector)).decode(),
        "at": vector["now"],
    }


def request_of(vector: Mapping[str, Any]) -> Request:
    body, url = body_of(vector), vector.get("url", URL)
    headers, repeated = read_headers((k.lower().encode(), v.encode()) for k, v in vector["headers"].items())

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(vector["method"], url, url.partition("?")[2], headers, repeated, receive, len(body), "192.0.2.1")


def judged(vector: Mapping[str, Any], status: int, problem: str | None) -> bool:
    """Whether the verdict is the right one: what is genuine and no event of the sender's may have no readable items."""
    if wanted(vector):
        return status < 300 or (status, problem) == (400, "bad-body")
    preset = PRESETS[vector["provider"]]
    if vector["method"] not in preset.methods:
        return (status, problem) == (405, "bad-request")
    refused = preset.bad_signature
    return status in (refused, vector.get("expected_reply", {}).get("status")) and problem == "bad-signature"


def problem_of(answer: Answer) -> str | None:
    if answer.content_type != "application/problem+json":
        return None
    return str(json.loads(answer.body)["type"]).removeprefix("urn:oncebox:problem:")


@pytest.mark.anyio
async def test_an_inbox_with_its_clock_set_judges_all_recorded_requests_right(tmp_path: Path) -> None:
    doors = {NAMES[one["id"]]: compile_door(NAMES[one["id"]], source_of(one), LIMIT) for one in VECTORS}
    now = 0
    wrong, readable = [], 0
    async with open_store(tmp_path / "inbox.db") as store:
        inbox = Inbox(doors, store, lambda: now)
        for vector in VECTORS:
            now = vector["now"] * 1_000_000
            answer = await inbox.accept(NAMES[vector["id"]], request_of(vector))
            readable += answer.status < 300
            if not judged(vector, answer.status, problem_of(answer)):
                wrong.append((vector["id"], answer))
        assert wrong == []
        assert readable >= 70
        assert sum(map(wanted, VECTORS)) - readable <= 2
        events = await store.read(lambda db: db.execute("select count(distinct source) from events").fetchone()[0])
        # Verification requests are answered and are no events.
        assert events >= readable - sum("expected_reply" in vector for vector in VECTORS)
        assert await store.read(lambda db: db.execute("pragma integrity_check").fetchone()) == ("ok",)


def test_explain_says_of_all_recorded_requests_what_the_inbox_does() -> None:
    wrong = []
    for vector in VECTORS:
        name = NAMES[vector["id"]]
        door = compile_door(name, source_of(vector), LIMIT)
        found = explain(door, name, incoming_of(read_asked(json.dumps(line_of(vector))), door, 0))
        right = judged(vector, found.reply["status"], found.problem)
        if not right or found.accepted != (found.problem is None):
            wrong.append((vector["id"], found))
    assert wrong == []


def test_the_command_judges_all_recorded_requests_by_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "litestar.toml").write_text("\n".join(toml()))
    for vector in VECTORS:
        monkeypatch.setenv(f"SECRET_{NAMES[vector['id']]}", secret_of(vector))
    lines = "".join(json.dumps(line_of(vector)) + "\n" for vector in VECTORS)
    config = str(tmp_path / "litestar.toml")
    result = CliRunner().invoke(main, ["explain", "--config", config], input=lines, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(found) == len(VECTORS)
    assert [one["source"] for one in found] == list(NAMES.values())
    pairs = zip(VECTORS, found, strict=True)
    assert [vector["id"] for vector, one in pairs if not judged(vector, one["reply"]["status"], one["problem"])] == []
    assert found[0].keys() == {"source", "accepted", "problem", "detail", "events", "reply"}


def toml() -> Iterator[str]:
    for vector in VECTORS:
        yield f"[sources.{NAMES[vector['id']]}]"
        yield f'preset = "{vector["provider"]}"'
        yield f'secrets = ["env:SECRET_{NAMES[vector["id"]]}"]'
        yield 'on_missing_id = "unique"'
        for key, value in (signature_of(vector) or {}).items():
            yield f"signature.{key} = {inline(value)}"


def inline(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def verdict(line: Mapping[str, Any], source: Source) -> Any:
    door = compile_door("x", source, LIMIT)
    return explain(door, "x", incoming_of(read_asked(json.dumps({"source": "x", **line})), door, 1_796_000_000_000_000))


def test_a_line_may_say_little_and_its_headers_may_repeat() -> None:
    plain = Source(id="header:X-Id", type="body:/t", unsigned=True)
    found = verdict({"headers": {"X-Id": "é", "X-A": ["1", "2"]}, "body": '{"t": "a"}'}, plain)
    assert found.events == [{"id": "é", "type": "a", "parts": ["é"]}]
    assert json.loads(found.reply["body"])["received_at"] == "2026-11-30T00:53:20.000000Z"
    found = verdict({"headers": [["X-Id", "Ã©"]], "body": "", "at": "2026-12-02T01:02:03.000004Z"}, plain)
    assert found.events[0]["id"] == "é"
    assert "01:02:03.000004Z" in found.reply["body"]
    assert "came more than once" in verdict({"headers": {"X-Id": ["1", "2"]}}, plain).detail
    assert verdict({"method": "PUT"}, plain).problem == "bad-request"
    assert verdict({"body": "x" * (LIMIT + 1)}, plain).problem == "too-large"
    assert verdict({"headers": {"Content-Encoding": "br"}, "body": "x"}, plain).problem == "bad-encoding"


def test_a_verification_request_is_accepted_and_brings_no_event() -> None:
    source = Source(preset="dropbox", secrets=(Secret("env:X", "s"),), on_missing_id=MissingId("unique"))
    found = verdict({"method": "GET", "url": "https://h.example/in/x?challenge=abc"}, source)
    assert (found.accepted, found.events, found.reply["body"]) == (True, [], "abc")


def test_items_of_a_batch_are_listed_with_their_senders_values() -> None:
    found = verdict(
        {"body": '[{"id": 1, "a": "x"}, {"id": 2, "a": "y"}]'},
        Source(id=("body:/id", "body:/a"), batch="array", unsigned=True),
    )
    assert [one["parts"] for one in found.events] == [["1", "x"], ["2", "y"]]
    assert [one["id"] for one in json.loads(found.reply["body"])] == ['["1","x"]', '["2","y"]']


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not a request"),
        ('{"method": "POST"}', "source"),
        ('{"source": "x", "body": "a", "body_base64": "YQ=="}', "not both"),
        ('{"source": "x", "body_base64": "Y"}', "base64"),
        ('{"source": "x", "at": "noon"}', "RFC 3339"),
        ('{"source": "x", "at": 1e300}', "unix seconds"),
    ],
)
def test_a_line_that_is_no_request_is_told_with_its_number(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "litestar.toml").write_text('[sources.x]\nid = "header:X"\nunsigned = true\n')
    arguments = ["explain", "--config", str(tmp_path / "litestar.toml")]
    result = CliRunner().invoke(main, arguments, input=f'{{"source": "y"}}\n\n{line}\n', catch_exceptions=False)
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[0])["problem"] == "unknown-source"
    assert "line 3" in result.stderr
    assert words in result.stderr
