"""The command about calls of operations, on the file alone and with a running server; what `check` says of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

from cli.conftest import Run, outside, parsed
from oncebox.cli.story import tell
from oncebox.model import Call, Result
from oncebox.store import DONE, UNKNOWN, Ended
from oncebox.store.sqlite import open_store
from operate.conftest import NOW, SECOND

HANDLERS = '''
import msgspec
from oncebox import Reply, Request, Transaction, operation

class Order(msgspec.Struct):
    sku: str

@operation("orders")
def create(order: Order, db: Transaction) -> Reply:
    """Make an order."""
    return Reply(201, {})

@operation("payments", retry_safe=True, public=True, methods=("POST", "PUT"))
async def pay(request: Request) -> Reply:
    return Reply(201, {})

@operation("charges")
async def charge(request: Request) -> Reply:
    return Reply(201, {})
'''
CALLERS = '[callers]\nacme = "plain:a-token-of-acme"\n'
MADE = Result(201, (("content-type", "application/json"), ("location", "/orders/7")), b'{"id":7}')


def call(key: str, operation: str = "orders", caller: str = "acme") -> Call:
    print_ = sha256(key.encode()).digest()
    return Call(caller=caller, key=key, operation=operation, fingerprint=print_, at=NOW)


async def write_history(database: Path) -> None:
    """One call of each kind, by a process that ended while one of them was running."""
    async with open_store(database, router=lambda _: ()) as store:
        for one, ended in (
            (call("k1"), Ended(DONE, MADE)),
            (call("k2", "charges"), Ended(UNKNOWN, why="TimeoutError: no answer")),
            (call("k3", "charges", ""), Ended(UNKNOWN, why="\x1b[31mred")),
            (call("k4", "charges"), None),
            (call("k5", "payments"), None),
        ):
            begun = await store.operations.begin(one)
            if ended is not None:
                await store.operations.end(one, begun.attempt, ended, NOW + SECOND)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test has its own folder, so its own module of this name."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("order_operations", None)


@pytest.fixture
def written(folder: Path) -> Path:
    config = folder / "litestar.toml"
    config.write_text(f'handlers = ["order_operations"]\n{config.read_text()}{CALLERS}')
    (folder / "order_operations.py").write_text(HANDLERS)
    return folder


@pytest.fixture
def history(written: Path) -> Path:
    anyio.run(write_history, written / "inbox.db")
    return written


def states(found: Any) -> dict[str, str]:
    return {one["key"]: one["state"] for one in found["operations"]}


def test_calls_are_listed_and_filtered(history: Path, run: Run) -> None:
    lines = run("operations").stdout.splitlines()
    assert [line.split()[2:5] for line in lines[1:]] == [
        ["acme", "k5", "payments"],
        ["acme", "k4", "charges"],
        ["-", "k3", "charges"],
        ["acme", "k2", "charges"],
        ["acme", "k1", "orders"],
    ]
    assert "\\x1b[31mred" in lines[3]
    for query, keys in (
        (("--state", "unknown"), ["k3", "k2"]),
        (("--operation", "orders"), ["k1"]),
        (("--caller", "-"), ["k3"]),
        (("list", "--caller", "acme", "--state", "done"), ["k1"]),
    ):
        assert list(states(parsed(run("operations", *query, "--json")))) == keys
    assert 'did you mean "unknown"' in run("operations", "--state", "unknow", code=2).stderr


def test_a_long_list_says_where_it_goes_on(history: Path, run: Run) -> None:
    first = run("operations", "--limit", "3")
    cursor = first.stderr.split("--cursor ")[1].strip()
    assert list(states(parsed(run("operations", "--cursor", cursor, "--json")))) == ["k2", "k1"]


def test_one_call_is_shown_with_its_reply_and_what_a_repeat_meets(history: Path, run: Run) -> None:
    shown = run("operations", "show", "acme", "k1").stdout
    assert "location: /orders/7" in shown
    assert "Each repeat of the same request gets this reply." in shown
    assert '{"id":7}' in shown
    assert parsed(run("operations", "show", "acme", "k1", "--json"))["reply"]["body"] == '{"id":7}'
    unknown = run("operations", "show", "-", "k3").stdout
    assert "oncebox operations resolve - k3 --as free" in unknown
    assert "\x1b" not in unknown
    assert "was running when the server ended" in run("operations", "show", "acme", "k4").stdout
    assert "there is no call of caller" in run("operations", "show", "acme", "k9", code=1).stderr


def test_an_unknown_call_is_resolved_in_the_file(history: Path, run: Run) -> None:
    reply = history / "reply.json"
    reply.write_text('{"status": 201, "headers": {"Location": "/orders/8"}, "body": {"id": 8, "sum": 1.50}}')
    done = run("operations", "resolve", "acme", "k2", "--as", "done", "--reply", str(reply)).stdout
    assert done == "acme k2 is done: each repeat is answered 201\n"
    found = parsed(run("operations", "show", "acme", "k2", "--json"))
    assert found["state"] == "done"
    assert found["reply"]["headers"] == [["location", "/orders/8"], ["content-type", "application/json"]]
    assert found["reply"]["body"] == '{"id": 8, "sum": 1.50}'
    free = run("operations", "resolve", "-", "k3", "--as", "free").stdout
    assert free == "- k3 is free: the same request may be sent again\n"
    assert "there is no call of callers without a name" in run("operations", "show", "-", "k3", code=1).stderr


def test_what_a_dead_process_left_running_is_decided_without_a_server(history: Path, run: Run) -> None:
    run("operations", "resolve", "acme", "k4", "--as", "free")
    refused = run("operations", "resolve", "acme", "k5", "--as", "free", code=1)
    assert "it was interrupted and may be sent again" in refused.stderr
    assert states(parsed(run("operations", "--json"))) == {
        "k1": "done",
        "k2": "unknown",
        "k3": "unknown",
        "k5": "interrupted",
    }


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("{", "--reply: "),
        ('{"body": 1}', "missing required field `status`"),
        ('{"status": 500, "body": 1}', "a reply with 500 is never kept"),
        ('{"status": 200, "headers": {"X-A": "1"}}', "X-A would not be kept"),
        ('{"status": 200, "body_base64": "?"}', "its body cannot be read"),
        ('{"status": 200, "body_base64": "AA==", "body": 2}', "a body and a body_base64"),
    ],
)
def test_a_reply_that_cannot_be_kept_is_refused_and_decides_nothing(
    history: Path, run: Run, reply: str, said: str
) -> None:
    (history / "reply.json").write_text(reply)
    assert said in run("operations", "resolve", "acme", "k2", "--as", "done", "--reply", "reply.json", code=2).stderr
    assert parsed(run("operations", "show", "acme", "k2", "--json"))["state"] == "unknown"


def test_done_needs_a_reply_and_free_has_none(history: Path, run: Run) -> None:
    assert "needs --reply" in run("operations", "resolve", "acme", "k2", "--as", "done", code=2).stderr
    wrong = run("operations", "resolve", "acme", "k2", "--as", "free", "--reply", "-", code=2).stderr
    assert "--reply goes with --as done only" in wrong


def test_all_of_it_goes_through_a_running_server(history: Path, server: str) -> None:
    listed = outside(history, "operations", "--state", "unknown", "--json")
    assert states(json.loads(listed.stdout)) == {"k4": "unknown", "k3": "unknown", "k2": "unknown"}
    assert "3 unknown: oncebox operations --state unknown" in outside(history, "stats").stdout
    (history / "reply.json").write_text('{"status": 204}')
    done = outside(history, "operations", "resolve", "acme", "k2", "--as", "done", "--reply", "reply.json")
    assert done.stdout == "acme k2 is done: each repeat is answered 204\n", done.stderr
    again = outside(history, "operations", "resolve", "acme", "k2", "--as", "free")
    assert again.returncode == 1
    assert "it is done and answers 204 to each repeat" in again.stderr
    assert "Each repeat" in outside(history, "operations", "show", "acme", "k2").stdout
    assert "oncebox operations resolve - k3" in outside(history, "operations", "show", "-", "k3").stdout


def test_check_lists_operations_and_who_may_call_them(written: Path, run: Run) -> None:
    found = parsed(run("check", "--json"))
    assert [(one["name"], one["kind"], one["takes"]) for one in found["operations"]] == [
        ("orders", "transactional", "Order"),
        ("payments", "async", None),
        ("charges", "async", None),
    ]
    assert found["callers"] == ["acme"]
    assert not [one for one in found["warnings"] if one.startswith("callers: no") or "@operation" in one]
    shown = run("check").stdout
    assert "POST, PUT" in shown
    row = next(line for line in shown.splitlines() if line.startswith("orders"))
    assert row.split()[4:6] == ["callers", "rolled"]


def test_check_says_what_nobody_may_call_and_who_has_nothing_to_call(written: Path, run: Run) -> None:
    config = written / "litestar.toml"
    config.write_text(config.read_text().replace(CALLERS, ""))
    closed = "callers: none, so /do/orders, /do/charges answers 401"
    assert closed in run("check").stdout
    (written / "order_operations.py").write_text(HANDLERS.replace("public=True", "public=False"))
    sys.modules.pop("order_operations")
    assert "callers: none, so /do answers 401" in run("check").stdout
    (written / "order_operations.py").write_text("from oncebox import setup\n@setup\ndef nothing(db): ...\n")
    sys.modules.pop("order_operations")
    config.write_text(config.read_text() + CALLERS)
    assert "callers: there is no @operation" in run("check").stdout


def test_an_event_that_no_other_event_led_to_is_not_said_to_have_been_sent() -> None:
    event = {
        "source": "mail", "id": "m1", "seq": 3, "type": None, "size": 2, "parent": None, "verified": "emitted",
        "received_at": "2026-11-30T00:53:20.000000Z", "receipt": None, "replays": 0, "deliveries": [], "body": "kept",
        "conflicts": 0,
    }  # fmt: skip
    head = "mail m1 (seq 3, 2 B): emitted once on 2026-11-30 00:53:20 UTC, by an operation or by the application around"
    assert tell(event)[0].startswith(head)
