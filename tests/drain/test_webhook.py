"""What a receiver is sent, and what its answer means: pure, with the receivers' own libraries as judges."""

from __future__ import annotations

import hmac
from base64 import b64encode
from datetime import UTC, datetime
from email.utils import format_datetime
from time import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook
from svix.webhooks import Webhook as SvixWebhook
from svix.webhooks import WebhookVerificationError

from oncebox.drain.webhook import (
    LONGEST_WAIT,
    SNIPPET,
    head_of,
    meaningful,
    of_answer,
    request_headers,
    shown,
    sign,
    signing_key,
    waited,
    webhook_id,
)
from oncebox.headers import Headers
from oncebox.model import Claimed, Event

SECRET = "whsec_" + b64encode(b"k" * 24).decode()
NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def claimed(id: str = "evt_1", *, raw: bytes = b'{"n":1}', type: str | None = "paid", **more: str) -> Claimed:
    event = Event(
        seq=1,
        source="shop",
        id=id,
        type=type,
        received_at=NOW,
        headers=Headers([("x-topic", "orders")]),
        content_type=more.get("content_type", "application/json"),
        body=raw,
        raw=raw,
        attempt=2,
        instance=more.get("instance", "edge"),
    )
    return Claimed(event, "t", 1, 2, 0, 0, more.get("encoding"))


def signed_now() -> dict[str, str]:
    """The headers of an attempt of this moment: the receivers' libraries go by their own clock."""
    return request_headers(claimed(), int(time()), signing_key(SECRET))


def test_the_receivers_own_libraries_verify_the_signature() -> None:
    headers = signed_now()
    assert Webhook(SECRET).verify(b'{"n":1}', headers) == {"n": 1}
    SvixWebhook(SECRET).verify(b'{"n":1}', headers)


@given(st.binary(min_size=1, max_size=80), st.integers(0, 140_000), st.text("abc:é", min_size=1, max_size=40))
def test_a_body_of_any_length_is_signed_whole(key: bytes, length: int, id: str) -> None:
    body = bytes(range(251)) * (length // 251) + b"x" * (length % 251)
    expected = b64encode(hmac.digest(key, f"{id}.7.".encode() + body, "sha256")).decode()
    assert sign(key, id, 7, body) == f"v1,{expected}"


def test_a_changed_body_is_not_verified() -> None:
    with pytest.raises(WebhookVerificationError, match="No matching signature"):
        SvixWebhook(SECRET).verify(b'{"n":2}', signed_now())


def test_without_a_secret_nothing_is_signed() -> None:
    headers = request_headers(claimed(), 1, None)
    assert "webhook-signature" not in headers
    assert headers["webhook-id"] == headers["Idempotency-Key"] == "edge:shop:evt_1"
    assert (headers["Oncebox-Id"], headers["Oncebox-Type"], headers["Oncebox-Attempt"]) == ("evt_1", "paid", "2")


def test_the_bodys_own_type_and_encoding_go_along() -> None:
    headers = request_headers(claimed(content_type="text/csv; header=present", encoding="gzip"), 1, None)
    assert (headers["Content-Type"], headers["Content-Encoding"]) == ("text/csv; header=present", "gzip")
    assert "Content-Type" not in request_headers(claimed(content_type=""), 1, None)


@given(st.text(min_size=1, max_size=400))
def test_a_name_in_a_header_is_printable_and_short_and_tells_events_apart(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    id = webhook_id(name)
    assert len(id) <= 255
    assert id.isascii()
    assert id.isprintable()
    assert webhook_id(f"{name}x") != id


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_no_header_can_be_smuggled_in_by_a_type(type: str) -> None:
    for value in request_headers(claimed(type=type), 1, None).values():
        assert not set("\r\n\0") & set(value)


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        ("X-GitHub-Event", True),
        ("Stripe-Signature", True),
        ("CE-Type", True),
        ("svix-id", True),
        ("traceparent", True),
        ("I-Twilio-Idempotency-Token", True),
        ("Linear-Delivery", True),
        ("Authorization", False),
        ("Proxy-Authorization", False),
        ("Cookie", False),
        ("X-Api-Key", False),
        ("X-Gitlab-Token", False),
        ("X-Session-Id", False),
        ("X-Webhook-Secret", False),
        ("X-Forwarded-For", False),
        ("Via", False),
        ("Host", False),
        ("Connection", False),
        ("Transfer-Encoding", False),
        ("Content-Length", False),
        ("Upgrade", False),
        ("User-Agent", False),
        ("webhook-id", False),
        ("webhook-signature", False),
        ("Oncebox-Attempt", False),
        ("Idempotency-Key", False),
    ],
)
def test_headers_that_mean_something_go_along_and_no_others(name: str, goes: bool) -> None:
    assert bool(meaningful(Headers([(name, "v")]))) is goes


def test_a_header_that_came_as_utf8_leaves_as_the_same_bytes() -> None:
    kept = "Grüße".encode().decode("latin-1")
    assert meaningful(Headers([("X-Title", kept)])) == {"x-title": "Grüße"}
    assert meaningful(Headers([("X-Title", "a\r\nb: c")])) == {}


@pytest.mark.parametrize("secret", ["whsec_", "hunter2 is no base64!", "whsec_grün", "abcde"])
def test_a_secret_that_is_no_key_is_refused_without_being_shown(secret: str) -> None:
    with pytest.raises(ValueError, match="is no Standard Webhooks secret") as caught:
        signing_key(secret)
    assert secret == "whsec_" or secret.removeprefix("whsec_") not in str(caught.value)


@given(st.binary(min_size=1, max_size=64))
def test_every_key_is_read_with_and_without_prefix_and_padding(key: bytes) -> None:
    text = b64encode(key).decode()
    assert signing_key(text) == signing_key(f"whsec_{text}") == signing_key(text.rstrip("=")) == key


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_done(status: int) -> None:
    assert of_answer(status).outcome == "ok"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_a_failure_that_says_where_it_points(status: int) -> None:
    verdict = of_answer(status, location="https://elsewhere.example/x")
    assert verdict.outcome == "error"
    assert "redirects are not followed (it points to https://elsewhere.example/x)" in str(verdict.error)
    assert not verdict.down


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_some_answers_say_that_the_target_is_down(status: int) -> None:
    assert of_answer(status).down


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 422, 500, 501])
def test_other_answers_say_something_about_the_event_only(status: int) -> None:
    assert not of_answer(status).down


def test_gone_is_dead_at_once() -> None:
    verdict = of_answer(410, snippet="unsubscribed")
    assert (verdict.outcome, verdict.dead) == ("refused", True)
    assert verdict.error == "answered 410 Gone\n\nunsubscribed"


def test_both_forms_of_retry_after_are_read() -> None:
    now = NOW.replace(microsecond=0)
    later = datetime.fromtimestamp(now.timestamp() + 90, UTC)
    assert waited("120", 0) == 120
    assert waited(format_datetime(later, usegmt=True), now.timestamp()) == 90
    assert waited(format_datetime(now, usegmt=True), now.timestamp() + 10) == 0
    assert waited("soon", 0) is None
    assert waited("", 0) is None
    assert waited("-5", 0) is None


@given(st.text(max_size=40), st.floats(0, 4e9))
def test_no_retry_after_can_break_or_stall_a_delivery(text: str, now: float) -> None:
    wait = waited(text, now)
    assert wait is None or 0 <= wait <= LONGEST_WAIT


def test_a_wait_is_never_shorter_than_the_first_of_the_schedule() -> None:
    assert of_answer(503, retry_after="0", least=5.0).after == 5.0
    assert of_answer(503, retry_after="9", least=5.0).after == 9.0
    assert of_answer(503, least=5.0).after is None


@pytest.mark.parametrize(
    ("came", "head"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\nOK", (204, {}, b"OK")),
        (b"\r\nHTTP/1.0 200\n\nx", (200, {}, b"x")),
        (b"HTTP/2 200 \r\nA: 1:2 \r\n\r\n\r\n", (200, {"a": "1:2"}, b"\r\n")),
        (b"HTTP/1.1 503 X\r\nX Y: 1\r\nno colon\r\nRetry-After:  7\r\nA", (503, {"x y": "1", "retry-after": "7"}, b"")),
        (b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 102 P\r\nA: b\r\n\r\nHTTP/1.1 299 X\r\n\r\n", (299, {}, b"")),
        (b"HTTP/1.1 101 Switching\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", (101, {}, b"HTTP/1.1 200 OK\r\n\r\n")),
    ],
)
def test_the_head_of_a_faulty_answer(came: bytes, head: tuple[int, dict[str, str], bytes]) -> None:
    found = head_of(came)
    assert found is not None
    assert (found.status, dict(found.headers), found.rest) == head


@pytest.mark.parametrize(
    "came",
    [
        b"",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 099 a\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 +20 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"XHTTP/1.1 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nHTTP/1.1 200 OK\r\n",
    ],
)
def test_without_a_status_line_there_is_no_head(came: bytes) -> None:
    assert head_of(came) is None


@given(st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 C\r\n"]))
def test_no_answer_can_break_its_reading(came: bytes, begun: bytes) -> None:
    found = head_of(begun + came)
    assert found is None or (found.status >= 200 or found.status == 101)


@given(st.binary(max_size=3000), st.sampled_from(["utf-8", "latin-1", "utf-16"]), st.booleans())
def test_what_the_other_side_said_is_bounded_text(body: bytes, charset: str, last: bool) -> None:
    text = shown(body, charset, last=last)
    assert len(text) <= SNIPPET
    assert "\0" not in text


def test_of_a_long_text_the_beginning_or_the_end_is_shown() -> None:
    body = b"a" * 600 + b"z"
    assert shown(body, "utf-8") == "a" * 499 + "…"
    assert shown(body, "utf-8", last=True) == "…" + "a" * 498 + "z"
