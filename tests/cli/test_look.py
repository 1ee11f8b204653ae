"""Commands that look: the same answers from a running server and from the file alone."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from cli.conftest import Run, outside, parsed
from oncebox.cli import SECTIONS
from oncebox.cli.show import brief, clean
from oncebox.cli.story import tell
from oncebox.model import Arrival, Planned, Refused
from oncebox.store.lock import Lock
from oncebox.store.sqlite import open_store
from operate.conftest import NOW, SECOND, arrival, ended


def routed(one: Arrival) -> tuple[Planned, ...]:
    return () if one.type == "lost" else (Planned("record_payment"),)


async def write_history(database: Path) -> None:
    """An event that went through on its second attempt, with three repeats; a dead one; one that goes nowhere."""
    async with open_store(database, router=routed) as store:
        await store.accept([arrival("evt_1", type="invoice.paid")])
        await store.accept([arrival("evt_2", type="invoice.failed\x1b[31m")])
        await store.accept([arrival("evt_3", type="lost")])
        for number in range(3):
            await store.accept([arrival("evt_1", body=b"other" if number else b"{}", at=NOW + number * SECOND)])
        first, second = await store.claim("record_payment", 2, NOW + SECOND)
        await store.settle(ended(first, "pending", error="no such table", due=NOW + SECOND))
        await store.settle(ended(second, "dead", error="bad amount"))
        [again] = await store.claim("record_payment", 2, NOW + SECOND)
        await store.settle(ended(again))
        why = Refused(
            source="demo",
            at=NOW,
            slug="bad-id",
            detail="no value",
            method="POST",
            url="/in/demo",
            headers=(),
            body=b"x",
        )
        await store.refuse([why], {("demo", "bad-id"): 1}, NOW)


@pytest.fixture
def history(folder: Path) -> Path:
    anyio.run(write_history, folder / "inbox.db")
    return folder


def test_events_are_listed_newest_first_without_a_server(history: Path, run: Run) -> None:
    lines = run("events").stdout.splitlines()
    assert lines[0].split() == ["SEQ", "RECEIVED", "(UTC)", "SOURCE", "ID", "TYPE", "STATE", "REPEATS"]
    assert [line.split()[0] for line in lines[1:]] == ["3", "2", "1"]
    assert [one["seq"] for one in parsed(run("events", "--json", "--state", "dead"))["events"]] == [2]
    assert [one["seq"] for one in parsed(run("events", "--json", "--type", "invoice.*"))["events"]] == [2, 1]


def test_what_a_sender_wrote_cannot_command_the_terminal(history: Path, run: Run) -> None:
    for command in (("events",), ("show", "2"), ("lookup", "demo", "evt_2")):
        assert r"invoice.failed\x1b[31m" in run(*command).stdout
    assert clean("a\nb\u202e\x9b") == r"a\nb\u202e\x9b"


def test_a_list_that_ends_early_says_how_to_go_on(history: Path, run: Run) -> None:
    result = run("events", "--limit", "2")
    cursor = result.stderr.split("--cursor ")[1].strip()
    assert [one["seq"] for one in parsed(run("events", "--json", "--cursor", cursor))["events"]] == [1]


def test_lookup_tells_the_story_in_sentences(history: Path, run: Run) -> None:
    assert run("lookup", "demo", "evt_1").stdout.splitlines() == [
        (
            "demo evt_1 (seq 1, type invoice.paid, 2 B): accepted once on 2026-11-30 00:53:20 UTC, verified by hmac, "
            "answered 202."
        ),
        (
            "3 repeats absorbed, last on 2026-11-30 00:53:22 UTC; 2 of them with another body, answered like the first "
            "(1 other body kept to look at)."
        ),
        (
            "record_payment finished on 2026-11-30 00:53:22 UTC, on attempt 2 in 1.5 ms after 1 failed attempt, "
            "the last one on 2026-11-30 00:53:21 UTC: no such table."
        ),
    ]
    assert "record_payment is dead after 1 attempt: bad amount." in run("lookup", "demo", "evt_2").stdout
    assert "unrouted" in run("lookup", "demo", "evt_3").stdout


def test_an_id_that_never_came_is_a_failure_in_one_line(history: Path, run: Run) -> None:
    result = run("lookup", "demo", "evt_9", code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("oncebox: no event of source")
    assert result.stderr.count("\n") == 1


def test_show_tells_facts_headers_and_attempts_or_writes_the_body(history: Path, run: Run) -> None:
    shown = run("show", "1").stdout
    assert "  x-a: 1" in shown
    assert "no such table" in shown
    assert run("show", "1", "--body").stdout_bytes == b"{}"
    assert parsed(run("show", "1", "--json"))["variants"][0]["size"] == 5


def test_stats_and_refused_are_read_from_the_file(history: Path, run: Run) -> None:
    stats = run("stats").stdout
    assert "bad-id 1" in stats
    assert "done 1, dead 1, unrouted 1" in stats
    assert "no value" in run("refused", "--source", "demo").stdout
    assert parsed(run("refused", "1"))["body"] == "x"


def test_a_file_that_does_not_exist_yet_is_a_sentence(folder: Path, run: Run) -> None:
    assert "there is no such file yet" in run("events", code=1).stderr


def test_a_file_of_something_else_is_a_sentence(folder: Path, run: Run) -> None:
    (folder / "inbox.db").write_bytes(b"not a database, but long enough to look at" * 50)
    assert "cannot be read" in run("events", code=1).stderr


def test_a_process_that_holds_the_file_without_answering_is_not_reachable(history: Path, run: Run) -> None:
    lock = Lock(history / "inbox.db")
    lock.acquire()
    try:
        assert "has this file open" in run("events", code=3).stderr
        lock.announce("http://127.0.0.1:9", "boot")
        assert "does not answer" in run("events", code=3).stderr
    finally:
        lock.release()


def test_a_url_where_nobody_answers_is_not_reachable(run: Run) -> None:
    assert "no server answers at http://127.0.0.1:9" in run("stats", "--url", "http://127.0.0.1:9", code=3).stderr


@pytest.mark.process
def test_a_running_server_is_found_by_its_lock_and_answers_the_same(history: Path, run: Run, server: str) -> None:
    listed = run("events", "--json")
    assert [one["seq"] for one in parsed(listed)["events"]] == [3, 2, 1]
    assert run("lookup", "demo", "evt_1").stdout.startswith("demo evt_1 (seq 1")
    assert run("show", "1", "--body").stdout_bytes == b"{}"
    assert parsed(run("stats", "--json"))["events"] == 3
    assert parsed(run("refused", "1"))["body"] == "x"
    assert "did you mean" in run("events", "--state", "daed", code=2).stderr
    assert "not known" in run("events", "--token", "wrong", code=1).stderr
    assert run("events", "--json", "--url", server).stdout == listed.stdout


@pytest.mark.process
def test_help_is_quick_and_in_groups_and_a_typo_is_met_with_the_right_name(folder: Path) -> None:
    shown = outside(folder, "--help")
    assert shown.returncode == 0
    assert [line for line in shown.stdout.splitlines() if line in ("Run:", "Look and mend:")] == [
        "Run:",
        "Look and mend:",
    ]
    wrong = outside(folder, "evnets")
    assert (wrong.returncode, 'Did you mean "events"?' in wrong.stderr) == (2, True)


def test_every_command_explains_itself(run: Run) -> None:
    for name in (name for names in SECTIONS.values() for name in names):
        assert run(name, "--help").stdout.startswith("Usage:")


def test_a_story_of_a_delivery_that_waits_says_when_it_goes_on() -> None:
    event = json.loads(
        '{"seq":1,"source":"a","id":"b","type":null,"received_at":"2026-12-02T01:02:03.000004Z","size":2048,'
        '"parent":7,"replays":1,"last_replay_at":"2026-12-02T01:02:04.000004Z","conflicts":0,"body":"pruned",'
        '"verified":"emitted","receipt":null,"deliveries":[{"target":"shop","state":"pending","run":1,"attempts":1,'
        '"next_attempt_at":"2026-12-02T01:03:03.000004Z","processed_at":null,"error":"timeout","history":[]},'
        '{"target":"mail","state":"parked","run":1,"attempts":0,"next_attempt_at":null,"error":null}]}'
    )
    assert tell(event) == [
        "a b (seq 1, 2.0 KiB): emitted once on 2026-12-02 01:02:03 UTC while event 7 was processed.",
        "1 repeat absorbed, last on 2026-12-02 01:02:04 UTC.",
        "shop waits for attempt 2, due 2026-12-02 01:03:03 UTC; the last one failed: timeout.",
        "mail waits for its turn: an earlier event of the same order key is not finished.",
        "Its body was pruned; a repeat is still recognised by its id.",
    ]


def test_a_story_tells_of_an_earlier_run_that_went_well_and_of_an_error_in_one_line() -> None:
    way = 'ValueError: two\nlines\n\nTraceback (most recent call last):\n  File "x.py", line 1\nValueError: two\nlines'
    tried = {"number": 1, "started_at": "2026-12-02T01:02:03.000004Z", "duration_ms": 1.0}
    event = {
        "seq": 1, "source": "a", "id": "b", "type": None, "received_at": "2026-12-02T01:02:03.000004Z", "size": 2,
        "parent": None, "replays": 0, "conflicts": 0, "body": "kept", "verified": "hmac",
        "deliveries": [
            {"target": "shop", "state": "dead", "run": 2, "attempts": 1, "error": way, "history": [
                {**tried, "run": 1, "outcome": "ok", "detail": None},
                {**tried, "run": 2, "outcome": "error", "detail": way},
            ]},
        ],
    }  # fmt: skip
    assert tell(event, {"shop": {"kind": "transactional"}})[2] == (
        "shop is dead after 1 attempt: ValueError: two: lines. It stays until somebody has it run again. "
        "An earlier run committed with its effect on 2026-12-02 01:02:03 UTC."
    )


@pytest.mark.parametrize(
    ("run_", "told"),
    [
        (2, "An earlier run was answered well on 2026-12-02 01:02:03 UTC."),
        (3, "2 earlier runs ended well, the last on 2026-12-02 01:02:03 UTC."),
    ],
)
def test_a_story_says_how_often_a_target_got_what_went_well_more_than_once(run_: int, told: str) -> None:
    """Under the number that `show` has, too: "rerun 1" is an order, and a sender's repeat revives without any."""
    at = "2026-12-02T01:02:03.000004Z"
    well = {"number": 1, "started_at": at, "duration_ms": 1.0, "outcome": "ok", "detail": None}
    event = {
        "seq": 1, "source": "a", "id": "b", "type": None, "received_at": at, "size": 2,
        "parent": None, "replays": 0, "conflicts": 0, "body": "kept", "verified": "hmac",
        "deliveries": [
            {"target": "shop", "state": "done", "run": run_, "attempts": 1, "error": None, "processed_at": at,
             "history": [{**well, "run": run} for run in range(1, run_ + 1)]},
        ],
    }  # fmt: skip
    assert tell(event, {"shop": {"kind": "url"}})[2] == (
        f"shop was answered well on 2026-12-02 01:02:03 UTC, on attempt 1 of run {run_} in 1.0 ms. {told}"
    )


def test_an_error_in_one_line_is_no_longer_than_one_reads() -> None:
    assert brief("answered 500 No\n\n<html>\n  gone") == "answered 500 No: <html> gone"
    assert brief("") == ""
    assert len(brief("x" * 5000)) == 301
