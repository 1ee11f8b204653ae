"""Handshakes: exact answers, never to somebody who did not sign, and never a signature for the asking."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.signed import URL, VECTORS, recorded, request
from oncebox.accept.handshake import HANDSHAKES, Ours, Reply, Verify, find_handshake, subscribe_url
from oncebox.accept.incoming import Incoming
from oncebox.accept.presets import PRESETS
from oncebox.accept.signature import Verified, compile_verifier, refusal
from oncebox.errors import ConfigError, Rejected

SECRET = "public|s3cret"


def answer(kind: str, incoming: Incoming, *, secrets: Sequence[str], verify: Verify, token: str = "") -> Reply | None:
    return find_handshake(kind)(incoming, Ours(secrets, verify, token))


def genuine(incoming: Incoming) -> Verified:
    return Verified("hmac", 0)


def forged(incoming: Incoming) -> Verified:
    raise refusal("the signature does not match")


def ask(kind: str, incoming: Incoming, secrets: tuple[str, ...] = (SECRET,)) -> Reply:
    """The answer to a genuine request that is a handshake."""
    reply = answer(kind, incoming, secrets=secrets, verify=genuine)
    assert reply is not None
    return reply


def get(query: str, headers: Mapping[str, str] | None = None) -> Incoming:
    return request(b"", headers, url=f"{URL}?{query}", method="GET")


def post(value: Any) -> Incoming:
    return request(json.dumps(value).encode(), {"Content-Type": "application/json"})


SLACK = post({"type": "url_verification", "token": "t", "challenge": "3eZbrw1a"})
ZOOM = post({"event": "endpoint.url_validation", "payload": {"plainToken": "qgg8vlvZRS6UYooatFL8Aw"}})


def test_slack_gets_its_challenge_as_text() -> None:
    reply = ask("slack", SLACK)
    assert (reply.status, reply.content_type, reply.body) == (200, "text/plain; charset=utf-8", b"3eZbrw1a")


def test_meta_gets_its_challenge_for_the_right_token_only() -> None:
    query = "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token="
    reply = answer("meta", get(query + "tok%20en"), secrets=("app secret",), verify=genuine, token="tok en")
    assert reply is not None
    assert (reply.status, reply.body) == (200, b"1158201444")
    for wrong in ("tok", "", "%ff", "app secret"):
        with pytest.raises(Rejected) as why:
            answer("meta", get(query + wrong), secrets=("app secret",), verify=genuine, token="tok en")
        assert why.value.status == 403
        assert "tok en" not in why.value.detail


def test_meta_is_turned_away_where_no_verify_token_is_configured() -> None:
    query = "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token="
    for sent in ("", "app%20secret", "x"):
        with pytest.raises(Rejected, match="verify_token") as why:
            answer("meta", get(query + sent), secrets=("app secret",), verify=genuine)
        assert why.value.status == 403


def test_what_a_source_answers_with_is_never_shown() -> None:
    assert repr(Ours(("s3cret",), genuine, "tok en")) == "Ours(…)"


def test_graph_gets_its_token_url_decoded_as_plain_text() -> None:
    query = "validationToken=Validation%3a+Testing+client+Request-Id%3a+abc%2B1"
    reply = ask("graph", request(b"", url=f"{URL}?{query}"))
    assert (reply.status, reply.body) == (200, b"Validation: Testing client Request-Id: abc+1")
    assert reply.content_type.startswith("text/plain")
    assert ("x-content-type-options", "nosniff") in reply.headers
    event = request(b'{"value":[]}', url=f"{URL}?{query}")
    assert answer("graph", event, secrets=("s",), verify=genuine) is None


@pytest.mark.parametrize("vector", [v for v in VECTORS if "expected_reply" in v], ids=lambda vector: vector["id"])
def test_recorded_verification_requests_get_the_recorded_answer(vector: dict[str, Any]) -> None:
    row = PRESETS[vector["provider"]]
    assert row.signature is not None
    assert row.handshake is not None
    verifier = compile_verifier(row.signature, [vector["secret"]], "signature")
    wanted = vector["expected_reply"]

    def asked() -> Reply | None:
        return answer(
            row.handshake or "",
            recorded(vector),
            secrets=[vector["secret"]],
            verify=lambda incoming: verifier.verify(incoming, vector["now"]),
        )

    if not vector["valid"]:
        with pytest.raises(Rejected) as why:
            asked()
        assert {"status": why.value.status} == wanted
        return
    reply = asked()
    assert reply is not None
    assert {"status": reply.status, "json": json.loads(reply.body)} == wanted


def test_zoom_is_answered_with_the_secret_that_signed() -> None:
    reply = answer("zoom", ZOOM, secrets=("old", "new"), verify=lambda incoming: Verified("hmac", 1))
    assert reply is not None
    right = hmac.new(b"new", b"qgg8vlvZRS6UYooatFL8Aw", hashlib.sha256).hexdigest()
    assert json.loads(reply.body) == {"plainToken": "qgg8vlvZRS6UYooatFL8Aw", "encryptedToken": right}


@pytest.mark.parametrize("token", ["v0:1746093600:{}", "a:b", "{", "", "a b", "é", "a\n", "x" * 257, None, 5, ["a"]])
def test_zoom_never_has_a_token_signed_that_could_be_an_event(token: object) -> None:
    incoming = post({"event": "endpoint.url_validation", "payload": {"plainToken": token}})
    with pytest.raises(Rejected):
        answer("zoom", incoming, secrets=("s",), verify=genuine)


@pytest.mark.parametrize(
    ("kind", "incoming"),
    [("slack", SLACK), ("zoom", ZOOM), ("discord", post({"type": 1})), ("discord", post({"type": 0}))],
)
def test_what_the_sender_signs_is_verified_before_it_is_answered(kind: str, incoming: Incoming) -> None:
    with pytest.raises(Rejected) as why:
        answer(kind, incoming, secrets=("s",), verify=forged)
    assert why.value.status == 401


def test_okta_and_dropbox_get_their_challenge() -> None:
    reply = ask("okta", get("", {"X-Okta-Verification-Challenge": "abc"}))
    assert (reply.status, json.loads(reply.body)) == (200, {"verification": "abc"})
    reply = ask("dropbox", get("challenge=<b>x"))
    assert (reply.status, reply.body, reply.content_type) == (200, b"<b>x", "text/plain; charset=utf-8")
    assert ("x-content-type-options", "nosniff") in reply.headers


def test_discord_has_two_pings_and_its_events_are_none() -> None:
    assert json.loads(ask("discord", post({"type": 1, "id": "1"})).body) == {"type": 1}
    reply = ask("discord", post({"type": 0}))
    assert (reply.status, reply.body, reply.content_type) == (204, b"", "application/json")
    for event in ({"type": 1, "event": {"type": "X"}}, {"type": 2, "id": "1"}, {"type": True}):
        assert answer("discord", post(event), secrets=("s",), verify=genuine) is None


def test_braintree_has_only_hex_challenges_signed() -> None:
    challenge = "20f9f8ed05f77439fe955c977e4c8a53"
    key = hashlib.sha1(b"s3cret").digest()
    right = hmac.new(key, challenge.encode(), hashlib.sha1).hexdigest()
    assert ask("braintree", get(f"bt_challenge={challenge}")).body == f"public|{right}".encode()
    payload = base64.b64encode(b"<notification/>").decode()
    for wrong in (payload, "abc", challenge + "0", challenge[:-1] + "g", ""):
        with pytest.raises(Rejected):
            answer("braintree", get(f"bt_challenge={wrong}"), secrets=(SECRET,), verify=genuine)


def test_cloudevents_origins_are_allowed_with_their_rate() -> None:
    headers = {"WebHook-Request-Origin": "eventemitter.example.com", "WebHook-Request-Rate": "120"}
    reply = ask("cloudevents", request(b"", headers, method="OPTIONS"))
    assert reply.status == 200
    assert dict(reply.headers) == {
        "allow": "POST",
        "webhook-allowed-origin": "eventemitter.example.com",
        "webhook-allowed-rate": "120",
    }
    for origin in ("a\r\nx: y", "", "é"):
        odd = request(b"", {"WebHook-Request-Origin": origin}, method="OPTIONS")
        assert answer("cloudevents", odd, secrets=(), verify=genuine) is None


def test_a_subscription_confirmation_is_an_event_and_nothing_is_fetched() -> None:
    url = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&Token=t"
    fields = {"Type": "SubscriptionConfirmation", "SubscribeURL": url}
    assert answer("sns", post(fields), secrets=("s",), verify=forged) is None
    assert subscribe_url(json.dumps(fields).encode()) == url
    for wrong in (
        "http://sns.us-east-1.amazonaws.com/",
        "https://sns.us-east-1.amazonaws.com.evil.example/",
        "https://[",
        5,
    ):
        assert subscribe_url(json.dumps({"SubscribeURL": wrong}).encode()) is None


def test_a_shop_s_unsigned_ping_gets_200_and_its_events_do_not() -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask("woocommerce", request(b"webhook_id=7", form)).status == 200
    for body, headers in (
        (b"webhook_id=7&order=1", form),
        (b'{"id":1}', {}),
        (b"webhook_id=7", form | {"X-WC-Webhook-Signature": "x"}),
    ):
        assert answer("woocommerce", request(body, headers), secrets=("s",), verify=genuine) is None


def test_a_probe_is_answered_and_a_post_is_not_one() -> None:
    assert ask("probe", request(b"", method="HEAD")).status == 200
    assert answer("probe", request(b"x"), secrets=("s",), verify=genuine) is None


@pytest.mark.parametrize("kind", sorted(HANDSHAKES))
def test_ordinary_events_are_no_handshakes(kind: str) -> None:
    for incoming in (
        post({"type": "event_callback", "event": {"type": "url_verification"}, "challenge": "x"}),
        post({"event": "meeting.started", "payload": {"plainToken": "x", "note": "endpoint.url_validation"}}),
        request(b"\xff", {}, url=f"{URL}?challenge=x&bt_challenge=y&hub.mode=subscribe"),
        request(b"[" * 50_000 + b'"type" url_verification endpoint.url_validation'),
    ):
        assert answer(kind, incoming, secrets=(SECRET,), verify=forged) is None


words = st.sampled_from(
    ["type", "challenge", "payload", "plainToken", "event", "url_verification", "endpoint.url_validation"]
)
values = st.recursive(
    words | st.integers(-1, 2) | st.none() | st.text(max_size=5),
    lambda inner: st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(sorted(HANDSHAKES)), values, st.text(max_size=20), st.sampled_from(["POST", "GET", "OPTIONS"]))
def test_a_forger_never_gets_a_mac_of_what_he_sends(kind: str, value: object, query: str, method: str) -> None:
    incoming = request(json.dumps(value).encode(), url=f"{URL}?challenge={query}&bt_challenge={query}", method=method)
    try:
        reply = answer(kind, incoming, secrets=("public|s3cret",), verify=forged)
    except Rejected:
        return
    if reply is not None:
        assert b"encryptedToken" not in reply.body
        assert b"public|" not in reply.body


def test_an_unknown_handshake_is_told_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match='did you mean "slack"'):
        find_handshake("slak", "sources.x.handshake")
