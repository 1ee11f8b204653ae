"""Recorded shapes of real senders, each through the door that its sender would get."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from oncebox.accept.door import Door
from oncebox.accept.doors import compile_door
from oncebox.accept.inbox import Inbox, Request
from oncebox.accept.incoming import Incoming, read_headers
from oncebox.accept.pointer import Pointers, text_of
from oncebox.config import MissingId, Source
from oncebox.errors import Rejected
from oncebox.store.sqlite import open_store

FOLDER = Path(__file__).parent.parent / "cases" / "payloads"
CASES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
NOW = 1_796_000_000_000_000

# Where a preset alone does not say it: what somebody with this sender writes into the configuration.
SOURCES: dict[str, dict[str, Any]] = {
    "05-slack-interactivity-form": {"id": "form:payload json:/trigger_id", "type": "form:payload json:/type"},
    "15-ndjson-lines": {"id": "body:/id", "batch": "ndjson"},
    "17-graph-validation-empty-body": {"preset": "microsoft_graph", "on_missing_id": MissingId("unique")},
    "27-unicode-ids": {"id": "body:/id", "batch": "array"},
}
# What an id may not have: its items of the case are refused, each by itself.
REFUSED_ITEMS = {"27-unicode-ids": {4, 5, 8}}


def door_of(name: str, case: dict[str, Any]) -> Door:
    given = SOURCES.get(name) or ({"id": "body:/id"} if case["provider"] == "custom" else {"preset": case["provider"]})
    return compile_door(case["provider"], Source(unsigned=True, **given), 5 << 20)


def request_of(case: dict[str, Any]) -> Incoming:
    body = base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()
    assert len(body) == case.get("body_length", len(body))
    headers, repeated = read_headers((name.lower().encode(), value.encode()) for name, value in case["headers"].items())
    url = case.get("url", "https://hooks.example.com/in/x")
    return Incoming(case.get("method", "POST"), url, url.partition("?")[2], headers, repeated, body, body, NOW)


def cases_with(key: str) -> list[str]:
    return [name for name, case in CASES.items() if case["expect"].get(key)]


def test_there_are_cases() -> None:
    assert len(CASES) >= 15
    assert SOURCES.keys() <= CASES.keys()


@pytest.mark.parametrize("name", [name for name in cases_with("event_ids") if name not in REFUSED_ITEMS])
def test_the_senders_ids_are_found_in_their_order(name: str) -> None:
    case = CASES[name]
    door = door_of(name, case)
    incoming = door.open(request_of(case))
    arrivals = door.arrivals(incoming, "unsigned")
    found = [door.fields.read(incoming, one.body).parts for one in arrivals]
    assert len(found) == len(case["expect"]["event_ids"])
    for parts, sent in zip(found, case["expect"]["event_ids"], strict=True):
        assert sent in parts
    assert door.is_batch(incoming) == case["expect"].get("batch", False)
    if "event_type" in case["expect"]:
        assert [one.type for one in arrivals] == [case["expect"]["event_type"]]


@pytest.mark.parametrize(
    ("name", "distinct"), [("09-sendgrid-batch-crlf-dup", 3), ("11-hubspot-batch-shared-eventid", 3)]
)
def test_items_that_are_one_event_share_a_key_and_others_do_not(name: str, distinct: int) -> None:
    arrivals = door_of(name, CASES[name]).arrivals(request_of(CASES[name]), "unsigned")
    assert len({one.id for one in arrivals}) == distinct


def test_a_retry_counter_is_no_part_of_a_key() -> None:
    case = CASES["11-hubspot-batch-shared-eventid"]
    again = case | {"body": case["body"].replace('"attemptNumber":0', '"attemptNumber":1')}
    door = door_of("11-hubspot-batch-shared-eventid", case)
    first, second = (door.arrivals(request_of(one), "unsigned") for one in (case, again))
    assert [one.id for one in first] == [one.id for one in second]
    assert first[0].body != second[0].body


@pytest.mark.parametrize("name", cases_with("second_is_distinct"))
def test_a_shared_delivery_id_does_not_hide_the_second_event(name: str) -> None:
    case = CASES[name]
    second = case | {"body": case["second"]["body"], "headers": case["headers"] | case["second"]["headers"]}
    door = door_of(name, case)
    (one,), (other,) = (door.arrivals(request_of(each), "unsigned") for each in (case, second))
    assert one.id != other.id


@pytest.mark.parametrize("name", cases_with("id_from_body_path"))
def test_integers_of_any_size_are_read_digit_by_digit(name: str) -> None:
    wanted = CASES[name]["expect"]["id_from_body_path"]
    (found,) = Pointers([(wanted["path"],)]).read(request_of(CASES[name]).body)
    assert text_of(found) == wanted["must_be_text"]


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case["expect"].get("event_ids", "") is None])
def test_a_request_without_a_usable_id_is_refused(name: str) -> None:
    with pytest.raises(Rejected) as caught:
        door_of(name, CASES[name]).arrivals(request_of(CASES[name]), "unsigned")
    assert (caught.value.status, caught.value.slug) == (400, "bad-id")


@pytest.mark.parametrize("name", REFUSED_ITEMS)
def test_every_item_has_its_own_id_or_is_refused_by_itself(name: str) -> None:
    door, incoming = door_of(name, CASES[name]), request_of(CASES[name])
    items = json.loads(incoming.body)
    kept = [item for index, item in enumerate(items) if index not in REFUSED_ITEMS[name]]
    whole = json_list(kept)
    arrivals = door.arrivals(with_body(incoming, whole), "unsigned")
    assert [one.id for one in arrivals] == [item["id"] for item in kept]
    assert len({one.id for one in arrivals}) == len(kept)
    for index in REFUSED_ITEMS[name]:
        with pytest.raises(Rejected, match="item 0: the value at /id") as caught:
            door.arrivals(with_body(incoming, json_list([items[index]])), "unsigned")
        assert caught.value.slug == "bad-id"


def json_list(items: list[Any]) -> bytes:
    return json.dumps(items).encode()


def with_body(incoming: Incoming, body: bytes) -> Incoming:
    return Incoming(
        incoming.method, incoming.url, incoming.query, incoming.headers, incoming.repeated, body, body, incoming.arrived
    )


@pytest.mark.parametrize("name", cases_with("handshake"))
def test_verification_requests_are_answered(name: str) -> None:
    wanted = CASES[name]["expect"]["reply"]
    reply = door_of(name, CASES[name]).greet(request_of(CASES[name]))
    assert reply is not None
    assert (reply.status, reply.content_type.partition(";")[0]) == (wanted["status"], wanted["content_type"])
    assert reply.body.decode() == wanted["text"]


# The key of every event of a case: what is stored, in order of arrival, each distinct one once.
KEYS: dict[str, list[str]] = {
    "01-stripe-invoice-paid": ["evt_1RTest00000000000000001"],
    "03-shopify-order-int64": ['["98880550-7158-44d4-b7cd-2c97c8a091b5","orders/create"]'],
    "05-slack-interactivity-form": ["13345224609.738474920.8088930838d88f008e0"],
    "07-mailgun-event-nested-id": ["CPgfbmQMTCKtHW6uIWtuVe"],
    "09-sendgrid-batch-crlf-dup": ["c2dfZXZlbnRfMQ", "c2dfZXZlbnRfMg", "c2dfZXZlbnRfMw=="],
    "11-hubspot-batch-shared-eventid": [
        '["25","3816279340","1746093599001"]',
        '["26","3816279340","1746093599001"]',
        '["25","3816279480","1746093599500"]',
    ],
    "13-cloudevents-structured-odd-id": [
        '["https://example.com/shop one","orders/2025 05/01?x=100%25&y=#frag/../\\\\end"]'
    ],
    "15-ndjson-lines": ["l-1", "l-2", "l-3"],
    "17-graph-validation-empty-body": [],
    "19-workos-same-id-as-paddle": ["01JT5M9Q6W8ZSAMEID0000000A"],
    "21-bom-json": ["with-bom"],
    "23-invalid-utf8-json": [],
    "25-id-null": [],
    "27-unicode-ids": [],
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", CASES)
async def test_an_inbox_stores_each_case_under_its_key(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    incoming, door = request_of(case), door_of(name, case)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": incoming.body, "more_body": False}

    async with open_store(tmp_path / "inbox.db") as store:
        inbox = Inbox({door.source: door}, store, lambda: NOW)
        for _ in range(2):
            facts = (incoming.method, incoming.url, incoming.query, incoming.headers, incoming.repeated)
            await inbox.accept(door.source, Request(*facts, receive, len(incoming.body), "127.0.0.1"))
        ids = await store.read(lambda db: db.execute("select id from events order by seq").fetchall())
        bodies = await store.read(lambda db: db.execute("select body from payloads").fetchall())
    digest = hashlib.sha256(incoming.body).hexdigest()
    assert [id for (id,) in ids] == KEYS.get(name, [f'["5d41402abc4b2a76b9719d911017c592","{digest}"]'])
    assert all(body in incoming.body for (body,) in bodies)
