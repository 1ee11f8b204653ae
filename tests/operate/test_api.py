"""The API over a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncebox.model import Refused, Reply
from oncebox.store.sqlite import SQLiteStore
from operate.conftest import NOW, SECOND, Caller, arrival, ended

pytestmark = pytest.mark.anyio

EVENT_KEYS = [
    "seq", "source", "id", "type", "received_at", "state", "processed_at", "size", "content_type", "body", "verified",
    "parent", "replays", "last_replay_at", "conflicts", "deliveries",
]  # fmt: skip


async def settle_one(store: SQLiteStore, state: str, error: str | None = None, due: int = 0) -> None:
    [claimed] = await store.claim("handler", 1, NOW + SECOND)
    await store.settle(ended(claimed, state, outcome="ok" if state == "done" else "error", error=error, due=due))


async def test_an_event_in_a_list_has_exactly_the_documented_members(store: SQLiteStore, api: Caller) -> None:
    await store.accept([arrival("evt_1", type="invoice.paid", body=b'{"n":1}')])
    await settle_one(store, "done")
    listed = await api.json("/api/events")
    assert listed.keys() == {"events", "next"}
    [event] = listed["events"]
    assert list(event) == EVENT_KEYS
    assert event == {
        "seq": 1,
        "source": "demo",
        "id": "evt_1",
        "type": "invoice.paid",
        "received_at": "2026-11-30T00:53:20.000000Z",
        "state": "done",
        "processed_at": "2026-11-30T00:53:22.000000Z",
        "size": 7,
        "content_type": "application/json",
        "body": "kept",
        "verified": "hmac",
        "parent": None,
        "replays": 0,
        "last_replay_at": None,
        "conflicts": 0,
        "deliveries": [
            {
                "target": "handler",
                "state": "done",
                "run": 1,
                "attempts": 1,
                "next_attempt_at": None,
                "processed_at": "2026-11-30T00:53:22.000000Z",
                "error": None,
            }
        ],
    }


async def test_one_event_adds_headers_receipt_variants_and_the_history_of_each_delivery(
    store: SQLiteStore, api: Caller
) -> None:
    await store.accept([arrival("evt_1")])
    await settle_one(store, "pending", error="boom", due=NOW + SECOND)
    await settle_one(store, "done")
    event = await api.json("/api/events/1")
    assert list(event) == [*EVENT_KEYS, "headers", "receipt", "variants"]
    assert event["headers"] == [["content-type", "application/json"], ["x-a", "1"]]
    assert event["receipt"] == {
        "status": 202,
        "content_type": "application/json",
        "body": '{"source":"demo","id":"evt_1","received_at":"2026-11-30T00:53:20.000000Z"}',
    }
    [delivery] = event["deliveries"]
    assert delivery["attempts"] == 2
    assert [(one["number"], one["outcome"], one["detail"]) for one in delivery["history"]] == [
        (1, "error", "boom"),
        (2, "ok", None),
    ]
    assert delivery["history"][1] == {
        "run": 1,
        "number": 2,
        "started_at": "2026-11-30T00:53:21.000000Z",
        "duration_ms": 1.5,
        "outcome": "ok",
        "detail": None,
    }
    assert await api.json("/api/lookup?source=demo&id=evt_1") == event


async def test_a_reply_of_the_sources_own_is_shown_as_it_was_given(store: SQLiteStore, api: Caller) -> None:
    await store.accept([arrival("evt_1", reply=Reply(200, "text/xml", b"<Response/>"))])
    event = await api.json("/api/events/1")
    assert event["receipt"] == {"status": 200, "content_type": "text/xml", "body": "<Response/>"}


@pytest.mark.parametrize(
    ("types", "state", "expected"),
    [
        (["lost"], "unrouted", [1]),
        (["t"], "pending", [1]),
        (["ordered", "ordered"], "parked", [2]),
        (["ordered", "ordered"], "pending", [1]),
        (["t", "lost"], "done", []),
    ],
)
async def test_a_filter_by_state_means_any_delivery_in_it(
    store: SQLiteStore, api: Caller, types: list[str], state: str, expected: list[int]
) -> None:
    for number, type in enumerate(types):
        await store.accept([arrival(f"evt_{number}", type=type)])
    assert [one["seq"] for one in (await api.json(f"/api/events?state={state}"))["events"]] == expected


async def test_a_parked_event_is_shown_as_pending_and_an_unrouted_one_never_as_done(
    store: SQLiteStore, api: Caller
) -> None:
    for number, type in enumerate(["ordered", "ordered", "lost"]):
        await store.accept([arrival(f"evt_{number}", type=type)])
    events = (await api.json("/api/events"))["events"]
    assert [event["state"] for event in events] == ["unrouted", "pending", "pending"]
    assert [one["next_attempt_at"] is None for event in events for one in event["deliveries"]] == [True, False]


async def test_pages_follow_each_other_by_cursor(store: SQLiteStore, api: Caller) -> None:
    await store.accept([arrival(f"evt_{number}") for number in range(5)])
    first = await api.json("/api/events?limit=2")
    second = await api.json(f"/api/events?limit=2&cursor={first['next']}")
    last = await api.json(f"/api/events?limit=2&cursor={second['next']}")
    assert [[one["seq"] for one in page["events"]] for page in (first, second, last)] == [[5, 4], [3, 2], [1]]
    assert last["next"] is None


async def test_a_search_in_bodies_says_how_far_it_looked(store: SQLiteStore, api: Caller) -> None:
    await store.accept([arrival("evt_1", body=b'{"who":"Zo\xc3\xab"}'), arrival("evt_2")])
    found = await api.json("/api/events?body=Zo%C3%AB")
    assert [one["seq"] for one in found["events"]] == [1]
    assert found["searched_to"] == 1


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("tpye=x", 'unknown parameter "tpye"; did you mean "type"?'),
        ("xyz=1", "known are: source, type"),
        ("limit=0", "limit:"),
        ("limit=501", "limit:"),
        ("limit=1e2", "limit:"),
        ("limit=%D9%A1", "limit:"),
        ("limit=1&limit=2", "limit: is there more than once"),
        ("since=yesterday", "since:"),
        ("since=2026-13-01T00:00:00Z", "since:"),
        ("until=2026-12-01", "until:"),
        ("state=ded", 'did you mean "dead"?'),
        ("cursor=5", "cursor:"),
        ("cursor=other.5", "cursor: was made before this file was restored"),
        ("source=", "source:"),
        ("q=%00", "q: has a NUL"),
    ],
)
async def test_a_bad_parameter_is_refused_by_its_name(api: Caller, query: str, words: str) -> None:
    said = await api.refusal(f"/api/events?{query}")
    assert said.startswith("400 bad-request: ")
    assert words in said


@pytest.mark.parametrize(
    "since", ["2h", "1ms", "2026-11-30T00:53:20Z", "2026-11-30t01:53:20.000000%2B01:00", "2026-11-30%2000:53:20Z"]
)
async def test_times_are_rfc_3339_or_back_from_now(store: SQLiteStore, api: Caller, since: str) -> None:
    await store.accept([arrival("evt_1")])
    assert (await api.get(f"/api/events?since={since}")).status_code == 200


@pytest.mark.parametrize("seq", ["2", "0", "-1", "9223372036854775808", "99999999999999999999999"])
async def test_an_event_that_is_not_there_is_not_found(store: SQLiteStore, api: Caller, seq: str) -> None:
    await store.accept([arrival("evt_1")])
    assert (await api.refusal(f"/api/events/{seq}")).startswith("404 not-found")
    assert (await api.refusal(f"/api/events/{seq}/body")).startswith("404 not-found")


async def test_a_look_up_needs_both_and_compares_byte_for_byte(store: SQLiteStore, api: Caller) -> None:
    await store.accept([arrival("Zoë 1")])
    assert (await api.json("/api/lookup?source=demo&id=Zo%C3%AB%201"))["seq"] == 1
    assert (await api.refusal("/api/lookup?source=demo&id=zo%C3%AB%201")).startswith("404 not-found")
    assert "id: is missing" in await api.refusal("/api/lookup?source=demo")


async def test_a_body_is_the_exact_bytes_and_nothing_a_browser_would_show(store: SQLiteStore, api: Caller) -> None:
    page = b"<script>\x00\xff</script>"
    await store.accept([arrival("evt_1", body=page)])
    answer = await api.get("/api/events/1/body")
    assert answer.content == page
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["oncebox-content-type"] == "application/json"


async def test_a_compressed_body_is_given_as_it_came(store: SQLiteStore, api: Caller) -> None:
    await store.accept([arrival("evt_1", body=b"\x1f\x8b", encoding="gzip")])
    answer = await api.get("/api/events/1/body")
    assert (answer.content, answer.headers["oncebox-encoding"]) == (b"\x1f\x8b", "gzip")
    assert "content-encoding" not in answer.headers


async def test_stats_add_up_and_name_sources_without_events(store: SQLiteStore, api: Caller) -> None:
    await store.accept([arrival("evt_1"), arrival("evt_2", type="lost", at=NOW + 1)])
    await settle_one(store, "dead", error="no")
    await store.refuse([], {("demo", "bad-id"): 3}, NOW)
    stats = await api.json("/api/stats?minutes=2")
    assert stats.keys() == {"events", "by_state", "sources", "oldest_due_at", "operations", "minutes", "file"}
    assert stats["events"] == 2
    assert {name: n for name, n in stats["by_state"].items() if n} == {"dead": 1, "unrouted": 1}
    assert stats["sources"] == {
        "demo": {
            "received": 2,
            "replays": 0,
            "refused": {"bad-id": 3},
            "last_at": "2026-11-30T00:53:20.000001Z",
        },
        "quiet": {"received": 0, "replays": 0, "refused": {}, "last_at": None},
    }
    assert stats["oldest_due_at"] is None
    assert len(stats["minutes"]) == 2
    assert stats["file"].keys() == {"db", "wal", "free", "disk_free"}
    assert stats["file"]["db"] > 0


async def test_the_oldest_due_delivery_is_found_over_all_targets_and_sources(store: SQLiteStore, api: Caller) -> None:
    for source, at in (("z", NOW + SECOND), ("m", NOW), ("a", NOW + 2 * SECOND)):
        await store.accept([arrival("evt_1", source=source, at=at)])
    assert (await api.json("/api/stats"))["oldest_due_at"] == "2026-11-30T00:53:20.000000Z"


async def test_refused_requests_are_listed_without_and_shown_with_their_bodies(store: SQLiteStore, api: Caller) -> None:
    kept = [
        Refused(
            source=source,
            at=NOW,
            slug="bad-id",
            detail="no value at /id",
            method="POST",
            url="http://here/in/demo",
            headers=(("x-a", "1"),),
            body=body,
        )
        for source, body in (("demo", b"text"), ("other", b"\xff"), ("demo", b""))
    ]
    await store.refuse(kept, {}, NOW)
    listed = await api.json("/api/refused?source=demo&limit=1")
    assert [one["n"] for one in listed["refused"]] == [3]
    assert "body" not in listed["refused"][0]
    assert [one["n"] for one in (await api.json(f"/api/refused?source=demo&cursor={listed['next']}"))["refused"]] == [1]
    one = await api.json("/api/refused/1")
    assert (one["problem"], one["body"], one["headers"]) == ("bad-id", "text", [["x-a", "1"]])
    assert (await api.json("/api/refused/2"))["body_base64"] == "/w=="
    assert (await api.refusal("/api/refused/9")).startswith("404 not-found")


async def test_a_flood_of_refused_requests_at_one_source_pushes_out_no_others(store: SQLiteStore, api: Caller) -> None:
    def request(source: str, size: int) -> Refused:
        return Refused(
            source=source, at=NOW, slug="bad-id", detail="", method="POST", url="", headers=(), body=b"x" * size
        )

    await store.refuse([request("quiet", 1000) for _ in range(5)], {}, NOW)
    await store.refuse([request("loud", 4 << 20) for _ in range(6)], {}, NOW)
    sources = [one["source"] for one in (await api.json("/api/refused"))["refused"]]
    assert sources == ["loud"] * 3 + ["quiet"] * 5


async def test_alive_and_ready_are_for_anybody_under_any_name(
    store: SQLiteStore, api: Caller, reasons: list[str]
) -> None:
    assert (await api.get("/healthz", None, host="anything")).json() == {"alive": True, "boot": store.boot}
    assert (await api.get("/readyz", None)).json() == {"ready": True, "reasons": []}
    reasons.append("the disk is full")
    answer = await api.get("/readyz", None)
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["the disk is full"])


async def test_litestars_own_refusals_are_problems_too(api: Caller) -> None:
    assert (await api.refusal("/nowhere")).startswith("404 not-found")
    assert (await api.refusal("/api/events/abc")).startswith("404 not-found")
    answer = await api.client.post("/api/events", headers={"host": "localhost"})
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_fault_of_ours_tells_nothing_of_itself(
    api: Caller, store: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.write(lambda db: None, NOW)
    store.path = Path("/nonexistent/secret-place/inbox.db")
    answer = await api.get("/api/stats")
    assert (answer.status_code, answer.json()["type"]) == (500, "about:blank")
    assert "secret-place" not in answer.text
    assert "secret-place" in caplog.text
