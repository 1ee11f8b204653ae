"""Recorded requests of all senders, sent to a running server whose clock stands where each of them was made."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest

from accept.recordings import NAMES, body_of, secret_of, signature_of, wanted
from accept.signed import URL, VECTORS
from accept.test_payloads import CASES, KEYS, REFUSED_ITEMS, SOURCES
from oncebox.accept.presets import PRESETS
from process.clocked import Clocked
from process.rig import Answer, sound

pytestmark = pytest.mark.process

# vector -> [id, type] of each of its events; an id that was made here is shown as "made here".
EVENTS: dict[str, list[list[str | None]]] = json.loads(
    (Path(__file__).parent.parent / "cases" / "events.json").read_text("utf-8")
)
MADE_HERE = "made here"
# Besides those whose reply is recorded.
GREETED = {"slack/url_verification_is_signed_too": b"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"}


class Sent(NamedTuple):
    """A request as it goes over the wire."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes


class Line:
    """One connection; what is sent is exactly what is given, and a length where none is given."""

    def __init__(self, server: Clocked) -> None:
        self._line = http.client.HTTPConnection(server.host, server.port, timeout=20)

    def send(self, sent: Sent) -> Answer:
        line, names = self._line, {name.lower() for name, _ in sent.headers}
        line.putrequest(sent.method, sent.target, skip_host="host" in names, skip_accept_encoding=True)
        for name, value in sent.headers:
            line.putheader(name, value.encode())
        if "content-length" not in names:
            line.putheader("Content-Length", str(len(sent.body)))
        line.endheaders(sent.body)
        got = line.getresponse()
        return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())

    def close(self) -> None:
        self._line.close()


def recorded(vector: Mapping[str, Any]) -> Sent:
    query = urlsplit(vector.get("url", URL)).query
    target = f"/in/{NAMES[vector['id']]}" + (f"?{query}" if query else "")
    return Sent(vector["method"], target, list(vector["headers"].items()), body_of(vector))


def source(vector: Mapping[str, Any]) -> Iterator[str]:
    """As an operator writes it who wants these requests: the URL as the sender knows it, events without an id too."""
    yield f"[sources.{NAMES[vector['id']]}]"
    yield f'preset = "{vector["provider"]}"'
    yield f"url = {quoted(vector.get('url', URL).partition('?')[0])}"
    yield f"secrets = [{quoted('plain:' + secret_of(vector))}]"
    yield 'on_missing_id = "unique"'
    for key, value in (signature_of(vector) or {}).items():
        yield f"signature.{key} = {inline(value)}"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def inline(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + " }"
    return quoted(str(value))


@contextmanager
def running(folder: Path, config: Iterator[str], at: int) -> Iterator[tuple[Clocked, Line]]:
    server = Clocked(folder / "inbox", at=at, config="\n".join(config))
    try:
        server.start()
        with closing(Line(server)) as line:
            yield server, line
    finally:
        server.end()


def events_of(server: Clocked, name: str) -> list[list[str | None]]:
    """What the API lists of a source, in order of arrival."""
    listed = json.loads(server.get(f"/api/events?source={name}&limit=50").body)["events"]
    return [[one["id"], one["type"]] for one in reversed(listed)]


def shown(events: Sequence[Sequence[str | None]]) -> list[list[str | None]]:
    return [[MADE_HERE if str(id).startswith("oncebox-") else id, type] for id, type in events]


def expected(vector: Mapping[str, Any]) -> tuple[int, str | None]:
    """Status and problem."""
    preset = PRESETS[vector["provider"]]
    if vector["method"] not in preset.methods:
        return 405, "bad-request"
    if not wanted(vector):
        return preset.bad_signature, "bad-signature"
    if "expected_reply" in vector or vector["id"] in GREETED:
        return 200, None
    if not EVENTS[vector["id"]]:
        return 400, "bad-body"  # genuine, and no event of its sender
    return preset.reply.status if preset.reply else 202, None


def answered_right(vector: Mapping[str, Any], answer: Answer, events: Sequence[Sequence[str | None]]) -> bool:
    """Whether a request is judged right, and answered as its sender wants it, else with the receipts of its events."""
    preset = PRESETS[vector["provider"]]
    problem = answer.problem if answer.status >= 400 else None
    if (answer.status, problem) != expected(vector):
        return False
    if problem is not None:
        return not events
    if vector["id"] in GREETED:
        return answer.body == GREETED[vector["id"]]
    if "expected_reply" in vector:
        return bool(json.loads(answer.body) == vector["expected_reply"]["json"])
    if preset.reply:
        return (answer.headers["content-type"], answer.body) == (preset.reply.content_type, preset.reply.body)
    told = json.loads(answer.body)
    receipts = told if isinstance(told, list) else [told]
    came = [one["received_at"] for one in receipts] == [rfc3339(vector["now"])] * len(events)
    ids = [[one["source"], one["id"]] for one in receipts] == [[NAMES[vector["id"]], id] for id, _ in events]
    return came and ids and answer.headers["content-type"] == "application/json"


def rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def repeated_right(first: Answer, again: Answer, events: Sequence[Sequence[str | None]]) -> bool:
    """Whether the same request once more is a replay, with the same answer; what has no id is another event."""
    if MADE_HERE in [id for id, _ in shown(events)]:
        return (again.status, again.replayed) == (first.status, False)
    return (again.status, again.body, again.replayed) == (first.status, first.body, bool(events))


def test_a_running_server_judges_all_recorded_requests_right(tmp_path: Path) -> None:
    config, wrong = (line for vector in VECTORS for line in source(vector)), []
    with running(tmp_path, config, VECTORS[0]["now"]) as (server, line):
        for vector in sorted(VECTORS, key=lambda one: int(one["now"])):
            server.set_clock(vector["now"])
            first = line.send(recorded(vector))
            events = events_of(server, NAMES[vector["id"]])
            again = line.send(recorded(vector))
            if not answered_right(vector, first, events) or not repeated_right(first, again, events):
                wrong.append((vector["id"], first, again))
            if shown(events) != EVENTS.get(vector["id"], []):
                wrong.append((vector["id"], first, again))
        assert wrong == []
        assert server.stop() == 0
        sound(server)
        refused = {NAMES[vector["id"]] for vector in VECTORS if expected(vector)[0] >= 400}
        counted = server.rows("select source, sum(n) from totals where minute = 0 and what like 'refused:%' group by 1")
        assert counted == [(name, 2) for name in sorted(refused)]


def test_there_is_an_answer_for_every_recorded_request_that_is_genuine() -> None:
    assert EVENTS.keys() == {vector["id"] for vector in VECTORS if wanted(vector)}
    assert len(EVENTS) == 72


def odd_source(number: int, name: str) -> Iterator[str]:
    """Somebody with this sender, who knows what comes from it and looks at no signature."""
    preset = CASES[name]["provider"]
    given = SOURCES.get(name) or ({"id": "body:/id"} if preset == "custom" else {"preset": preset})
    yield f"[sources.p{number}]"
    yield "unsigned = true"
    for key, value in given.items():
        yield f"{key} = {quoted(getattr(value, 'policy', value))}"


def odd_request(number: int, case: Mapping[str, Any]) -> Sent:
    query = urlsplit(case.get("url", URL)).query
    body = base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()
    target = f"/in/p{number}" + (f"?{query}" if query else "")
    return Sent(case.get("method", "POST"), target, list(case["headers"].items()), body)


def test_a_running_server_stores_odd_requests_under_their_keys(tmp_path: Path) -> None:
    config = (line for number, name in enumerate(CASES) for line in odd_source(number, name))
    with running(tmp_path, config, 1_796_000_000) as (server, line):
        for number, (name, case) in enumerate(CASES.items()):
            first, again = (line.send(odd_request(number, case)) for _ in range(2))
            events, wanted_reply = events_of(server, f"p{number}"), case["expect"].get("reply", {})
            assert [id for id, _ in events] == (KEYS[name] if name in KEYS else [case_id(case)]), name
            assert (again.status, again.body, again.replayed) == (first.status, first.body, bool(events)), name
            assert first.status == wanted_reply.get("status", first.status if events else 400) < 500, name
            assert first.body.decode() == wanted_reply.get("text", first.body.decode()), name
            if "event_type" in case["expect"]:
                assert [type for _, type in events] == [case["expect"]["event_type"]], name


def case_id(case: Mapping[str, Any]) -> str:
    """The key of a sender whose own id is not enough: with the hash of what came."""
    digest = hashlib.sha256(case["body"].encode()).hexdigest()
    return json.dumps([*case["expect"]["event_ids"], digest], separators=(",", ":"))


def test_a_running_server_tells_apart_what_only_looks_alike(tmp_path: Path) -> None:
    shop, texts = CASES["29-woocommerce-delivery-id-collision"], CASES["27-unicode-ids"]
    config = (
        '[sources.shop]\npreset = "woocommerce"\nunsigned = true\n[sources.texts]\nid = "body:/id"\nunsigned = true'
    )
    with running(tmp_path, iter([config]), 1_796_000_000) as (server, line):
        for headers, body in ((shop["headers"], shop["body"]), (shop["second"]["headers"], shop["second"]["body"])):
            sent = Sent("POST", "/in/shop", list(headers.items()), body.encode())
            assert [line.send(sent).replayed for _ in range(2)] == [False, True]
        assert len(events_of(server, "shop")) == 2
        items = json.loads(texts["body"])
        bad = REFUSED_ITEMS["27-unicode-ids"]
        for number, item in enumerate(items):
            answer = line.send(Sent("POST", "/in/texts", (), json.dumps(item).encode()))
            assert answer.status == (400 if number in bad else 202), item
        kept = [item["id"] for number, item in enumerate(items) if number not in bad]
        assert [id for id, _ in events_of(server, "texts")] == kept
        for id in kept:
            assert json.loads(server.get(f"/api/lookup?source=texts&id={quote(id)}").body)["id"] == id


GREETINGS = {
    "meta": ("GET", "?hub.mode=subscribe&hub.verify_token=tok&hub.challenge=115%2b8", (), b"115+8"),
    "dropbox": ("GET", "?challenge=a%20b", (), b"a b"),
    "okta": ("GET", "", (("Authorization", "s"), ("X-Okta-Verification-Challenge", "xyz")), b'{"verification":"xyz"}'),
    "microsoft_graph": ("POST", "?validationToken=a%3a+b%2B1", (), b"a: b+1"),
    "braintree": ("GET", f"?bt_challenge={'a1' * 10}", (), None),
    "mandrill": ("HEAD", "", (), b""),
    "cloudevents": ("OPTIONS", "", (("WebHook-Request-Origin", "a.example"),), b""),
}


def greeted_source(name: str) -> Iterator[str]:
    yield from (f"[sources.{name}]", f'preset = "{name}"', 'secrets = ["plain:p|s"]', 'on_missing_id = "unique"')
    if name == "meta":
        yield 'verify_token = "plain:tok"'


def test_a_running_server_answers_verification_requests_and_keeps_no_event_of_them(tmp_path: Path) -> None:
    with running(tmp_path, (line for name in GREETINGS for line in greeted_source(name)), 1_796_000_000) as (
        server,
        line,
    ):
        for name, (method, query, headers, body) in GREETINGS.items():
            got = line.send(Sent(method, f"/in/{name}{query}", headers, b""))
            assert (got.status, body if body is not None else got.body) == (200, got.body), (name, got)
        wrong = GREETINGS["meta"][1].replace("tok&", "other&")
        assert line.send(Sent("GET", f"/in/meta{wrong}", (), b"")).status == 403
        assert server.rows("select count(*) from v_events") == [(0,)]


def test_an_impossible_host_is_a_wrong_signature_where_no_url_is_configured(tmp_path: Path) -> None:
    config = ("[sources.calls]", 'preset = "twilio"', 'secrets = ["plain:s"]')
    rest = (("Content-Type", "application/x-www-form-urlencoded"), ("X-Twilio-Signature", "A" * 27 + "="))
    with running(tmp_path, iter(config), 1_796_000_000) as (_, line):
        for host in ("a[b", "[::1", "a:b", "a:99999999", ""):
            answer = line.send(Sent("POST", "/in/calls?bodySHA256=0", (("Host", host), *rest), b"a=1"))
            assert (answer.status, answer.problem) == (401, "bad-signature"), host
