"""Commands that mend: dead, rerun, reruns, targets, sources, tail; on the file alone and with a running server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import anyio
import pytest

from cli.conftest import COMMAND, Run, parsed
from oncebox.cli import client, desk
from oncebox.cli.dead import group_by_error, list_dead
from oncebox.cli.standing import reason
from oncebox.cli.tail import PAGE, Follower, told
from oncebox.model import Planned
from oncebox.operate.rerunning import MOST_SEQS
from oncebox.store.sqlite import open_store
from operate.conftest import NOW, SECOND, arrival, ended

LATER = "what was asked may still happen: look before you ask again"
ROOT = Path(__file__).parents[2]
HANDLERS = """
from oncebox import Dead, on

@on("demo")
def ship(event, db):
    if event.run == 1 and event.type == "bad":
        raise Dead(f"no stock for order {event.seq}")

@on("demo", type="new")
def later(event, db): ...
"""


async def write_history(database: Path) -> None:
    """Three dead events, one done, one that went nowhere, one whose target is gone."""
    async with open_store(database, router=lambda a: () if a.type == "lost" else (Planned("ship"),)) as store:
        await store.accept([arrival(f"bad_{n}", type="bad") for n in range(3)])
        await store.accept([arrival("good"), arrival("lost", type="lost")])
        for number, claimed in enumerate(await store.claim("ship", 10, NOW + SECOND)):
            why = "timeout" if number == 2 else f"no stock for order {number + 1}"
            await store.settle(ended(claimed, "done") if number == 3 else ended(claimed, "dead", error=why))


@pytest.fixture
def history(folder: Path) -> Path:
    config = folder / "litestar.toml"
    config.write_text(f'handlers = ["ship_handlers"]\n{config.read_text()}')
    (folder / "ship_handlers.py").write_text(HANDLERS)
    anyio.run(write_history, folder / "inbox.db")
    return folder


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test has its own folder, so its own module of this name."""
    path = list(sys.path)
    yield
    sys.modules.pop("ship_handlers", None)
    sys.path[:] = path


def test_what_is_dead_is_grouped_by_error_whatever_its_numbers(history: Path, run: Run) -> None:
    groups = parsed(run("dead", "--json"))["groups"]
    assert [(one["count"], one["target"], one["error"], one["seqs"]) for one in groups] == [
        (2, "ship", "no stock for order 2", [2, 1]),
        (1, "ship", "timeout", [3]),
    ]
    assert run("dead").stdout.splitlines()[1].split()[:2] == ["2", "ship"]
    assert run("dead", "--error", "stock", "--seqs").stdout == "1\n2\n"
    assert run("dead", "--error", "nothing like it", "--seqs").stdout == ""
    assert [one["seq"] for one in parsed(run("dead", "--error", "timeout", "--json"))["dead"]] == [3]
    assert parsed(run("dead", "--target", "other", "--json"))["groups"] == []


@pytest.mark.parametrize("place", ["README.md", "help"])
def test_the_way_to_run_one_group_again_keeps_to_its_target_and_to_what_an_order_takes(place: str, run: Run) -> None:
    text = run("dead", "--help").stdout if place == "help" else (ROOT / place).read_text()
    told = " ".join(text.split())
    way = re.search(r"oncebox dead --target (\w+)[^`]*?xargs -rn (\d+) oncebox rerun --state dead --to (\w+)", told)
    assert way is not None
    assert way[1] == way[3]
    assert int(way[2]) == MOST_SEQS


def test_what_is_dead_elsewhere_stays_so_when_one_target_is_named(history: Path, run: Run) -> None:
    assert parsed(run("rerun", "1", "2", "--state", "dead", "--to", "ship", "--dry-run", "--json")) == {"matched": 2}
    assert parsed(run("rerun", "1", "2", "--state", "dead", "--to", "later", "--dry-run", "--json")) == {"matched": 0}


def test_grouping_takes_any_error() -> None:
    assert group_by_error([]) == []
    event = {"seq": 1, "source": "s", "id": "i", "type": None, "received_at": "x", "deliveries": [
        {"target": "t", "state": "dead", "error": None, "attempts": 1},
        {"target": "u", "state": "done", "error": "x", "attempts": 1},
    ]}  # fmt: skip
    assert [one["error"] for one in list_dead([event])] == ["no reason is known"]
    assert group_by_error([{**list_dead([event])[0], "error": "\n"}])[0]["count"] == 1


def test_a_rerun_is_counted_written_down_and_cancelled_without_a_server(history: Path, run: Run) -> None:
    assert run("rerun", "--state", "dead", "--dry-run").stdout == "3 deliveries would be processed again\n"
    assert "it begins when `oncebox serve` starts" in run("rerun", "--state", "dead", "--rate", "50").stdout
    [found] = parsed(run("reruns", "--json"))["reruns"]
    assert (found["id"], found["matched"], found["rate"], found["who"]) == (1, 3, 50, "command line")
    assert "state=dead" in run("reruns").stdout
    assert parsed(run("reruns", "show", "1", "--json"))["state"] == "running"
    assert run("reruns", "cancel", "1").stdout == "rerun 1 is cancelled\n"
    assert "there is no rerun 2" in run("reruns", "show", "2", code=1).stderr


def test_an_order_that_means_nothing_is_a_sentence(history: Path, run: Run) -> None:
    assert "or --all for all history" in run("rerun", "--rate", "5", code=2).stderr
    assert "'nan' is not a number" in run("rerun", "--all", "--rate", "nan", code=2).stderr
    assert "there is no event 99" in run("rerun", "99", code=1).stderr
    assert 'did you mean "ship"?' in run("rerun", "1", "--to", "shipp", code=2).stderr
    assert "POINTER=JSON" in run("rerun", "--where", "x", code=2).stderr
    assert parsed(run("rerun", "--where", "/a=1", "--dry-run", "--json")) == {"matched": 0}
    assert parsed(run("rerun", "--all", "--dry-run", "--json")) == {"matched": 5}
    assert not (history / "inbox.db-wal").exists() or (history / "inbox.db-wal").stat().st_size == 0


def test_targets_are_listed_paused_and_resumed_without_a_server(history: Path, run: Run) -> None:
    assert run("targets", "pause", "ship", "--why", "moving").stdout == "ship is paused: moving\n"
    later, ship = parsed(run("targets", "--json"))["targets"]
    assert (ship["state"], ship["paused"], ship["dead"], later["state"]) == ("paused", "moving", 3, "ready")
    assert "moving" in run("targets").stdout
    assert run("targets", "resume", "ship").stdout == "ship goes on\n"
    assert run("targets", "resume", "ship").stdout == "ship was not paused\n"
    assert "there is no target" in run("targets", "pause", "nobody", code=1).stderr


def test_who_asks_for_what_waits_hears_that_its_target_takes_nothing(history: Path, run: Run) -> None:
    anyio.run(write_one, history / "inbox.db")

    def last_sentence() -> str:
        return run("lookup", "demo", "waits").stdout.splitlines()[-1]

    assert last_sentence().startswith("ship waits for its first attempt, due since")
    assert " is " not in last_sentence()
    run("targets", "pause", "ship", "--why", "moving")
    assert last_sentence().endswith(". ship is paused: moving.")
    run("targets", "resume", "ship")
    config = history / "litestar.toml"
    config.write_text(config.read_text().replace('["ship_handlers"]', "[]"))
    assert ". ship is blocked: nobody is this target (any more); its deliveries wait for it" in last_sentence()
    config.write_text(config.read_text().replace("[]", '["not_there"]', 1))
    assert " is " not in last_sentence()


def test_what_waits_is_settled_and_all_pauses_are_undone_without_a_server(history: Path, run: Run) -> None:
    assert run("rerun", "4", "--to", "later").exit_code == 0
    assert "name targets, or say --all" in run("targets", "settle", "--before", "0s", "--as", "done", code=2).stderr
    assert "name targets, or say --all" in run("targets", "resume", code=2).stderr
    assert run("targets", "resume", "--all").stdout == "nothing is paused\n"
    for name in ("later", "ship"):
        run("targets", "pause", name)
    told = run("targets", "settle", "--all", "--before", "0s", "--as", "done", "--dry-run").stdout
    assert told == "later: 0 would be settled as done\nship: 0 would be settled as done\n"
    anyio.run(write_one, history / "inbox.db")
    assert parsed(run("targets", "settle", "ship", "--before", "0s", "--as", "dead", "--why", "old", "--json")) == {
        "targets": [{"name": "ship", "as": "dead", "before": ANY, "settled": 1, "matched": 1, "counted_all": True}]
    }
    assert "settled as dead by command line: old" in run("dead").stdout
    assert run("targets", "resume", "--all").stdout == "later goes on\nship goes on\n"


async def write_one(database: Path) -> None:
    async with open_store(database, router=lambda _: (Planned("ship"),)) as store:
        await store.accept([arrival("waits")])


def test_what_is_told_of_a_target_that_is_down() -> None:
    fine = {"state": "ready", "paused": None, "stuck": False, "down": None, "last_failure": None}
    since, failure = "2026-12-02T01:02:03.000004Z", {"at": "x", "outcome": "unreachable", "error": "refused"}
    down = {"since": since, "next_probe_at": "2026-12-02T01:04:03.000004Z"}
    assert reason(fine) is None
    assert reason({**fine, "last_failure": failure}) is None
    told = "down since 2026-12-02 01:02:03, next probe 01:04:03; refused"
    assert reason({**fine, "state": "down", "down": down, "last_failure": failure}) == told
    paused = {**fine, "state": "paused", "paused": "moving", "down": {**down, "next_probe_at": None}}
    assert reason(paused) == "moving; down since 2026-12-02 01:02:03, a probe is under way"


def test_sources_are_listed(history: Path, run: Run) -> None:
    found = {one["name"]: one for one in parsed(run("sources", "--json"))["sources"]}
    assert (found["demo"]["received"], found["mail"]["kind"], found["stripe"]["preset"]) == (5, "internal", "stripe")
    assert "/in/stripe" in run("sources").stdout


def test_with_a_server_it_happens_at_once(history: Path, run: Run, server: str) -> None:
    assert "rerun 1 done: 3 done, 0 dead of 3" in run("rerun", "--state", "dead", "--wait").stdout
    assert parsed(run("rerun", "4", "--to", "later", "--wait", "--json"))["done"] == 1
    assert parsed(run("rerun", "--state", "unrouted", "--wait", "--json"))["done"] == 1
    assert parsed(run("dead", "--json"))["groups"] == []
    assert run("targets", "pause", "later").stdout == "later is paused: paused by admin\n"
    states = {one["name"]: one["state"] for one in parsed(run("targets", "--json"))["targets"]}
    assert states == {"later": "paused", "ship": "ready"}
    assert run("reruns", "cancel", "1").stdout == "rerun 1 is done\n"
    assert [one["id"] for one in parsed(run("reruns", "--json"))["reruns"]] == [3, 2, 1]
    assert "demo" in run("sources").stdout


def test_a_rerun_that_has_ended_says_how_many_it_left_alone(history: Path, run: Run, server: str) -> None:
    assert run("targets", "pause", "later").exit_code == 0
    assert run("rerun", "4", "--to", "later").exit_code == 0
    told = run("rerun", "4", "--to", "later", "--rate", "1000", "--wait").stdout
    assert told.startswith("rerun 2 done: 0 done, 0 dead of ")
    assert told.endswith("; 1 skipped\n")


def test_an_order_that_is_not_answered_in_time_may_have_been_taken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 0.2)
    monkeypatch.setattr(desk, "PATIENCE", 0.8)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        many = run("rerun", "--all", "--url", url, "--token", "t", code=3).stderr
        assert many == f"oncebox: {url} has not answered in 0.8 s; {LATER}\n"
        one = run("rerun", "1", "--url", url, "--token", "t", code=3).stderr
        assert one == f"oncebox: {url} has not answered in 0.2 s; {LATER}\n"
        asked = run("reruns", "--url", url, "--token", "t", code=3).stderr
        assert asked == f"oncebox: {url} has not answered in 0.2 s\n"


def test_a_server_that_nobody_runs_cannot_be_followed(history: Path, run: Run) -> None:
    assert "nothing runs that could be followed" in run("tail", code=3).stderr


def test_tail_shows_events_and_outcomes_as_they_come(history: Path, server: str) -> None:
    command = [*COMMAND, "tail", "-n", "1", "--every", "0.2"]
    with subprocess.Popen(command, cwd=history, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            post(server, "live-1", "new")
            lines = [process.stdout.readline()]
            while not (any("ship done" in line for line in lines) and any("later done" in line for line in lines)):
                lines.append(process.stdout.readline())
                assert len(lines) < 8, lines
        finally:
            process.terminate()
    assert "demo lost lost  unrouted" in first
    assert "demo live-1 new" in lines[0]


def post(address: str, id: str, type: str) -> None:
    headers = {"Idempotency-Key": id, "X-Event-Type": type}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/in/demo", b"{}", headers), timeout=10) as answer:
        assert answer.status == 202


class Fake:
    """A server's lists, as the follower asks for them; `asked` is how often."""

    def __init__(self) -> None:
        self.events: dict[int, Any] = {}
        self.lately: list[int] = []
        self.asked = 0

    def put(self, seq: int, state: str = "pending", error: str | None = None) -> None:
        delivery = {"target": "t", "run": 1, "state": state, "error": error, "processed_at": None}
        self.events[seq] = {"seq": seq, "source": "s", "id": f"e{seq}", "type": None, "state": state,
                            "received_at": "2026-12-02T01:02:03.000004Z", "deliveries": [delivery]}  # fmt: skip

    def page(self, given: dict[str, str | None]) -> Any:
        self.asked += 1
        below = int(given.get("cursor") or 10**9)
        seqs = sorted((seq for seq in self.events if seq < below), reverse=True)[:PAGE]
        more = any(seq < seqs[-1] for seq in self.events) if seqs else False
        return {"events": [self.events[seq] for seq in seqs], "next": str(seqs[-1]) if more else None}

    def one(self, seq: int) -> Any:
        self.asked += 1
        return self.events.get(seq)

    def changed(self) -> Any:
        self.asked += 1
        return [self.events[seq] for seq in self.lately]


def test_each_event_and_each_outcome_is_shown_once_whatever_comes_late() -> None:
    fake = Fake()
    for seq in range(1, 301):
        fake.put(seq, "done")
    follower = Follower(fake.page, fake.one, fake.changed)
    assert [one["event"]["seq"] for one in follower.begin({}, 2)] == [299, 300]
    fake.put(303)
    assert [one["event"]["seq"] for one in follower.round({})] == [303]
    fake.put(302)
    fake.put(303, "done")
    assert [(one["change"], one["event"]["seq"]) for one in follower.round({})] == [("received", 302), ("outcome", 303)]
    assert list(follower.round({})) == []
    for seq in range(304, 604):
        fake.put(seq, "done")
    assert len(list(follower.round({}))) == 300
    fake.put(302, "dead", "why")
    [change] = follower.round({})
    assert told(change) == ["              302  s e302  t dead: why"]


def test_outcomes_of_old_events_are_shown_as_they_come() -> None:
    fake = Fake()
    for seq in range(1, 301):
        fake.put(seq, "done")
    fake.lately = [7]
    follower = Follower(fake.page, fake.one, fake.changed)
    assert [one["event"]["seq"] for one in follower.begin({}, 1)] == [300]
    assert list(follower.round({})) == []
    fake.put(8, "pending")
    fake.lately = [8, 7]
    assert list(follower.round({"source": "s"})) == []
    fake.put(8, "dead", "why")
    fake.put(9, "done")
    fake.lately = [9, 8, 7]
    changes = list(follower.round({"source": "s"}))
    assert [(one["change"], one["event"]["seq"]) for one in changes] == [("outcome", 8), ("outcome", 9)]
    assert list(follower.round({"source": "s"})) == []
    fake.put(10, "done")
    fake.lately = [10]
    assert list(follower.round({"source": "other"})) == []


def test_a_round_asks_a_bounded_number_of_times() -> None:
    fake = Fake()
    follower = Follower(fake.page, fake.one, fake.changed)
    fake.put(1)
    list(follower.begin({}, 0))
    for seq in range(2, 5000):
        fake.put(seq)
    fake.asked = 0
    changes = list(follower.round({}))
    assert changes[0]["change"] == "missed"
    assert fake.asked <= 15


def test_the_commands_of_the_group_answer_in_json(history: Path, run: Run) -> None:
    for command in ("dead", "reruns", "targets", "sources"):
        assert isinstance(json.loads(run(command, "--json").stdout), dict)
