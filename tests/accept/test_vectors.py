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
