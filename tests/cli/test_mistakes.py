"""What people mistype, mislay and break: each a sentence and an exit code, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

from cli.conftest import COMMAND, Run, outside, parsed
from oncebox.cli import Commands, main
from oncebox.cli.client import Answer, Client
from oncebox.cli.inbox import Inbox, open_inbox
from oncebox.cli.options import Asked
from oncebox.cli.story import tell
from oncebox.config import salvage
from oncebox.errors import OnceboxError
from oncebox.model import Refused
from oncebox.store.sqlite import open_store
from operate.conftest import NOW, arrival

REFUSED = Refused(
    source="demo", at=NOW, slug="id-conflict", detail="", method="POST", url="/in/demo", headers=(), body=b"x"
)


async def write_history(database: Path) -> None:
    """One event, and three requests that were turned away: two conflicts and one of another id; one was accepted."""
    said = "the id 'evt_1' of source demo was accepted before with another body"
    async with open_store(database) as store:
        await store.accept([arrival("evt_1")])
        for detail in (said, said, said.replace("evt_1", "evt_10")):
            one = Refused(**{name: getattr(REFUSED, name) for name in REFUSED.__struct_fields__} | {"detail": detail})
            await store.refuse([one], {("demo", "id-conflict"): 1}, NOW)
        await store.change(lambda db, _: db.execute("update refused set accepted_at = ? where n = 2", (NOW,)))


@pytest.fixture
def history(folder: Path) -> Path:
    anyio.run(write_history, folder / "inbox.db")
    return folder


class TestFiles:
    @pytest.mark.parametrize("command", ["send demo nope.json", "explain nope.json"])
    def test_a_file_that_is_not_there_is_a_usage_error(self, run: Run, command: str) -> None:
        assert "'nope.json' does not exist" in run(*command.split(), code=2).stderr

    @pytest.mark.parametrize("command", ["send demo .", "explain ."])
    def test_a_folder_in_place_of_a_file_is_a_usage_error(self, run: Run, command: str) -> None:
        assert "is a directory" in run(*command.split(), code=2).stderr

    def test_a_folder_that_cannot_be_made_is_a_sentence(self, folder: Path, run: Run) -> None:
        said = run("init", "litestar.toml/new", code=1).stderr
        assert said.startswith("oncebox: litestar.toml/new: Not a directory; name another place")
        assert said.count("\n") == 1

    @pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied", "/x"), OSError("odd")])
    def test_whatever_the_machine_refuses_is_a_sentence(self, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(Path, "mkdir", refuse)
        result = CliRunner().invoke(main, ["init", "x"], catch_exceptions=False)
        assert result.exit_code == 1
        assert result.stderr.startswith("oncebox: ")
        assert (error.strerror or "odd") in result.stderr

    def test_looking_for_what_was_refused_makes_no_file(self, folder: Path, run: Run) -> None:
        assert "there is no such file yet" in run("refused", "accept", "1", code=1).stderr
        assert [path.name for path in folder.iterdir()] == ["litestar.toml"]


class TestTexts:
    def test_lines_that_cannot_be_read_are_named_by_their_place_and_the_others_judged(
        self, folder: Path, run: Run
    ) -> None:
        good = b'{"source":"demo","headers":{"Idempotency-Key":"a"}}'
        (folder / "lines").write_bytes(b"\n".join([good, b"", b"no json", b'{"source":"\xff"}', b"", good, b""]))
        result = run("explain", "lines", code=1)
        assert [json.loads(line)["accepted"] for line in result.stdout.splitlines()] == [True, True]
        assert [line.split(": ")[1] for line in result.stderr.splitlines()[:2]] == ["line 3", "line 4"]
        assert "2 of the lines could not be read" in result.stderr

    @pytest.mark.parametrize("command", ["lookup demo", "send demo --url http://127.0.0.1:9 --type", "events --search"])
    def test_an_argument_that_is_no_text_is_a_sentence(self, history: Path, command: str) -> None:
        ended = subprocess.run(
            [*COMMAND, *command.split(), b"\xff"], cwd=history, capture_output=True, timeout=60, check=False
        )
        assert ended.returncode in (1, 2, 3)
        assert b"Traceback" not in ended.stderr
        assert ended.stderr.startswith(b"oncebox: ")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["send", "demo", "--id", "a\nb", "--url", "http://127.0.0.1:9"], "cannot be sent"),
            (["events", "--token", "a\nb", "--url", "http://127.0.0.1:9"], "cannot be sent"),
            (["events", "--token", "\u0142", "--url", "http://127.0.0.1:9"], "cannot be sent"),
            (["events", "--url", "http://[::1"], "is not the URL of a server"),
            (["events", "--url", "http://127.0.0.1:99999"], "is not the URL of a server"),
            (["events", "--url", "ftp://x"], "is not the URL of a server"),
        ],
    )
    def test_what_cannot_stand_in_a_request_is_a_sentence(self, run: Run, arguments: list[str], words: str) -> None:
        assert words in run(*arguments, code=2).stderr

    @pytest.mark.process
    def test_an_id_in_other_letters_is_sent_as_utf8(self, folder: Path, run: Run, server: str) -> None:
        assert run("send", "demo", "--id", "łódź-1").exit_code == 0
        assert run("lookup", "demo", "łódź-1").stdout.startswith("demo łódź-1 (seq 1")

    @pytest.mark.parametrize("body", [b"[]", b"<html>", b"7"])
    def test_an_answer_of_something_else_is_a_sentence(self, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
        monkeypatch.setattr(Client, "request", lambda *_, **__: Answer(200, {}, body))
        client = Client("http://127.0.0.1:9")
        with pytest.raises(OnceboxError, match="not as Oncebox does"):
            client.get("/x")
        with pytest.raises(OnceboxError, match="not as Oncebox does"):
            client.post("/x", {})


class TestEnds:
    def test_an_interrupt_ends_with_its_own_code_and_no_word(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Commands, "resolve_command", interrupted)
        result = CliRunner().invoke(main, ["events"])
        assert (result.exit_code, result.output) == (128 + signal.SIGINT, "")

    @pytest.mark.process
    def test_a_reader_that_goes_away_ends_the_command_quietly(self, history: Path) -> None:
        read, write = os.pipe()
        os.close(read)
        with subprocess.Popen([*COMMAND, "events"], cwd=history, stdout=write, stderr=subprocess.PIPE) as process:
            os.close(write)
            assert process.communicate(timeout=60)[1] == b""


class TestSources:
    def test_a_source_that_is_misspelt_is_named_rightly(self, history: Path, run: Run) -> None:
        right = 'there is no source "demoo"; did you mean "demo"?'
        assert right in run("refused", "accept", "--all", "demoo", code=1).stderr
        assert right in run("refused", "--source", "demoo").stderr
        assert right in run("events", "--source", "demoo").stderr
        assert right in run("lookup", "demoo", "evt_1", code=1).stderr
        assert "there are: demo, mail, stripe" in run("refused", "accept", "--all", "zebra", code=1).stderr

    def test_one_that_is_known_and_has_nothing_is_no_mistake(self, history: Path, run: Run) -> None:
        assert run("refused", "accept", "--all", "stripe").stdout == "0 of 0 accepted\n"
        assert run("events", "--source", "stripe").stderr == ""
        assert "there is no source" not in run("lookup", "demo", "evt_9", code=1).stderr

    def test_the_list_of_what_was_refused_says_what_was_accepted_after_all(self, history: Path, run: Run) -> None:
        head, *rows = run("refused").stdout.splitlines()
        assert "ACCEPTED (UTC)" in head
        assert ["2026-11-30 00:53:20" in row[30:] for row in rows] == [False, True, False]


def kinds(inbox: Inbox) -> dict[str, str | None]:
    return {name: one["kind"] for name, one in inbox.targets().items()}


class TestLookup:
    def test_conflicts_that_were_refused_are_part_of_the_story(self, history: Path, run: Run) -> None:
        told = run("lookup", "demo", "evt_1").stdout
        said = "2 requests with this id and another body were refused (422 id-conflict), the last on"
        assert f"{said} 2026-11-30 00:53:20 UTC; see oncebox refused 2." in told

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            ("transactional", "pay committed with its effect on"),
            ("async", "pay finished on"),
            ("blocking", "pay finished on"),
            ("staged", "pay finished on"),
            ("handler", "pay finished on"),
            ("url", "pay was answered well on"),
            ("command", "pay ended with exit code 0 on"),
            ("", "pay finished on"),
        ],
    )
    def test_only_what_commits_with_its_mark_has_committed(self, kind: str, words: str) -> None:
        at = "2026-12-02T01:02:03.000004Z"
        event: dict[str, Any] = {"seq": 1, "source": "a", "id": "b", "type": None, "received_at": at, "size": 1}
        event |= {"parent": None, "replays": 0, "conflicts": 0, "body": "kept", "verified": "hmac", "receipt": None}
        delivery = {"target": "pay", "state": "done", "run": 1, "attempts": 1, "processed_at": at, "error": None}
        told = tell({**event, "deliveries": [delivery]}, {"pay": {"kind": kind}} if kind else {})
        assert told[-1] == f"{words} 2026-12-02 01:02:03 UTC, on attempt 1."

    def test_the_kinds_of_handlers_are_known_without_a_server(self, history: Path, run: Run) -> None:
        (history / "kind_handlers.py").write_text("from oncebox import on\n@on('demo')\ndef ship(event, db): pass\n")
        config = history / "litestar.toml"
        target = "[targets.shop]\nurl = 'http://127.0.0.1:9'\n"
        config.write_text(f'handlers = ["kind_handlers"]\n{config.read_text()}{target}')
        with open_inbox(Asked(None, None, None, as_json=False)) as inbox:
            assert kinds(inbox) == {"ship": "transactional", "shop": "url"}
        config.write_text(config.read_text().replace("kind_handlers", "not_there"))
        with open_inbox(Asked(None, None, None, as_json=False)) as inbox:
            assert kinds(inbox) == {"shop": "url"}


@pytest.mark.process
class TestBrokenConfiguration:
    @pytest.mark.parametrize(
        "broken",
        [
            "[server\nport = 1\n{}",
            "{}\n[sources.x]\nid = = 3\n",
            "{}\n[sources.x]\nidd = 'header:X'\n",
            "{}\n[sources.x]\nid = 'header:X'\nsecrets = ['env:NOT_SET_ANYWHERE']\n",
            "{}\n[store.more]\nx = 1\n",
        ],
        ids=["heading", "syntax", "key", "secret", "store"],
    )
    def test_a_running_server_is_found_and_asked_all_the_same(
        self, history: Path, run: Run, server: str, broken: str
    ) -> None:
        config = history / "litestar.toml"
        config.write_text(broken.format(config.read_text()))
        for command in (["events"], ["lookup", "demo", "evt_1"], ["stats"], ["refused"], ["targets"], ["show", "1"]):
            result = run(*command)
            assert result.stderr.startswith("oncebox: warning: litestar.toml: ")
            assert "asking the running server all the same" in result.stderr
        assert run("events", "--url", server, "--json").exit_code == 0
        assert [one["seq"] for one in parsed(run("events", "--json"))["events"]] == [1]

    def test_without_a_server_it_is_the_mistake_it_is(self, history: Path, run: Run) -> None:
        (history / "litestar.toml").write_text("[server]\nprot = 1\n")
        result = run("events", code=2)
        assert 'did you mean "port"?' in result.stderr
        assert "warning" not in result.stderr

    def test_the_configured_token_is_still_read(self, folder: Path) -> None:
        config = folder / "litestar.toml"
        config.write_text(f"{config.read_text()}\n[tokens]\nboss = 'plain:a-token'\n")
        config.write_text(f"{config.read_text()}\n[broken\n")
        kept = salvage(None, {"ONCEBOX_DB": "other.db"})
        assert (kept.tokens["boss"].secret.value, kept.store.path) == ("a-token", folder / "other.db")
        assert salvage(None, {}).store.path == folder / "inbox.db"


def test_a_command_outside_says_the_same(folder: Path) -> None:
    ended = outside(folder, "init", "litestar.toml/new")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
