"""Signatures of senders that do it their own way, by parameters of the generic schemes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from accept.signed import NOW, URL, refused, request, row, verifier_of
from oncebox.accept.signature import SignatureSpec, compile_verifier
from oncebox.accept.spec import Claims, Sig


def adyen_body(*items: dict[str, Any]) -> bytes:
    return json.dumps({"notificationItems": [{"NotificationRequestItem": item} for item in items]}).encode()


def adyen_item(key: bytes, reference: str) -> dict[str, Any]:
    text = f"{reference}::M:{reference}:1130:EUR:AUTHORISATION:true"
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    return {
        "additionalData": {"hmacSignature": signature}, "pspReference": reference, "merchantAccountCode": "M",
        "merchantReference": reference, "amount": {"value": 1130, "currency": "EUR"}, "eventCode": "AUTHORISATION",
        "success": "true",
    }  # fmt: skip


def test_every_item_that_carries_its_own_signature_is_checked() -> None:
    key = b"k" * 32
    verifier = compile_verifier(row("adyen"), [key.hex()], "signature")
    good, bad = adyen_item(key, "1"), adyen_item(b"x" * 32, "2")
    assert verifier.verify(request(adyen_body(good, adyen_item(key, "3"))), NOW).secret == 0
    refused(verifier, request(adyen_body(good, bad)))
    refused(verifier, request(adyen_body()))
    refused(verifier, request(b'{"notificationItems":{}}'))


@pytest.mark.parametrize("kind", ["urlencoded", "multipart"])
def test_signed_form_fields_are_found_in_both_kinds_of_form(kind: str) -> None:
    right = hmac.new(b"s", f"{NOW}tok".encode(), hashlib.sha256).hexdigest()
    fields = {"timestamp": str(NOW), "token": "tok", "signature": right}
    body, content_type = urlencode(fields).encode(), "application/x-www-form-urlencoded"
    if kind == "multipart":
        parts = [
            f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields.items()
        ]
        body, content_type = "".join([*parts, "--b--\r\n"]).encode(), 'multipart/form-data; boundary="b"'
    verifier = compile_verifier(row("mailgun_inbound"), ["s"], "signature")
    assert verifier.verify(request(body, {"Content-Type": content_type}), NOW).secret == 0
    assert "form" in refused(verifier, request(body, {"Content-Type": "application/json"}))


def test_a_body_with_a_name_twice_is_refused_where_the_signature_reads_it() -> None:
    verifier = compile_verifier(row("microsoft_graph"), ["cs"], "signature")
    assert verifier.verify(request(b'{"value":[{"clientState":"cs"}]}'), NOW).secret == 0
    assert "twice" in refused(verifier, request(b'{"value":[{"clientState":"evil","clientState":"cs"}]}'))
    refused(verifier, request(b'{"value":[]}'))
    assert "another secret" in refused(verifier, request(b'{"value":[{"clientState":"cs"},{"clientState":"evil"}]}'))


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff{}", b"NaN", b"", b"1" * 20_000, b'"\\ud800"'])
@pytest.mark.parametrize("name", ["mailgun", "adyen", "microsoft_graph", "aws_sns"])
def test_a_hostile_body_is_refused_where_the_signature_reads_it(name: str, body: bytes) -> None:
    refused(verifier_of(name), request(body))


def twilio(url: str, body: bytes, content_type: str, signed: str, hash_name: str = "sha1", **headers: str) -> Any:
    signature = base64.b64encode(hmac.new(b"s", signed.encode(), hash_name).digest()).decode()
    return request(body, {"Content-Type": content_type, "X-Twilio-Signature": signature} | headers, url=url)


def test_twilio_forms_json_ports_and_shared_keys() -> None:
    verifier = compile_verifier(row("twilio"), ["s"], "signature")
    form = "application/x-www-form-urlencoded"
    assert verifier.verify(twilio("https://a.example/x", b"b=2&a=1", form, "https://a.example/xa1b2"), NOW).secret == 0
    assert verifier.verify(twilio("https://a.example/x", b"b=2", form, "https://a.example:443/xb2"), NOW).secret == 0
    assert verifier.verify(twilio("https://a.example:8443/x", b"b=2", form, "https://a.example/xb2"), NOW).secret == 0
    settings = {"X-Twilio-Webhooks-Signature-Settings": "key=k,algorithm=HMAC_SHA256"}
    assert verifier.verify(twilio(URL, b"b=2", form, f"{URL}b2", "sha256", **settings), NOW).secret == 0
    refused(verifier, twilio(URL, b"b=2", form, f"{URL}b2", "sha1", **settings))
    hashed = f"{URL}?bodySHA256={hashlib.sha256(b'{}').hexdigest()}"
    assert verifier.verify(twilio(hashed, b"{}", "application/json", hashed), NOW).secret == 0
    assert "hash" in refused(verifier, twilio(hashed, b"{ }", "application/json", hashed))
    assert "no form" in refused(verifier, twilio(URL, b"{}", "application/json", URL))


def test_a_url_that_the_sender_signs_with_its_escapes_undone_verifies() -> None:
    verifier = compile_verifier(row("hubspot"), ["s"], "signature")
    stamp = str(NOW * 1000)
    signature = hmac.new(b"s", f"POST{URL}?a=b:c@d%20{{}}{stamp}".encode(), hashlib.sha256).digest()
    headers = {"X-HubSpot-Signature-v3": base64.b64encode(signature).decode(), "X-HubSpot-Request-Timestamp": stamp}
    assert verifier.verify(request(b"{}", headers, url=f"{URL}?a=b%3Ac%40d%20"), NOW).secret == 0


def token_of(head: dict[str, Any], claims: dict[str, Any], key: bytes = b"s") -> str:
    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    text = ".".join(encode(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{encode(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


@pytest.mark.parametrize(
    ("head", "claims", "words"),
    [
        ({"alg": "none"}, {}, "not signed with HS256"),
        ({"alg": "RS256"}, {}, "not signed with HS256"),
        ({"alg": "HS256", "crit": ["x"]}, {}, "not signed with HS256"),
        ({"alg": "HS256"}, {"iss": "evil"}, "another issuer"),
        ({"alg": "HS256"}, {"exp": NOW - 31}, "expired"),
        ({"alg": "HS256"}, {"exp": True}, "no time exp"),
        ({"alg": "HS256"}, {"exp": "x"}, "no time exp"),
        ({"alg": "HS256"}, {"nbf": NOW + 31}, "not valid yet"),
        ({"alg": "HS256"}, {"aud": "b"}, "another audience"),
        ({"alg": "HS256"}, {"sub": "y"}, "claim sub"),
        ({"alg": "HS256"}, {"h": "00"}, "body is not the one"),
        ({"alg": "HS256"}, {"h": None}, "no claim h"),
    ],
)
def test_a_token_that_claims_something_else_is_refused(
    head: dict[str, Any], claims: dict[str, Any], words: str
) -> None:
    said = Claims(iss=("i",), aud="a", body_sha256_hex="h", exp=True, nbf=True, match={"sub": "x"})
    spec = SignatureSpec("jws", Sig("header:X"), algs=("HS256",), claims=said, leeway=30)
    verifier = compile_verifier(spec, ["s"], "signature")
    right = {"iss": "i", "aud": ["z", "a"], "h": hashlib.sha256(b"").hexdigest(), "exp": NOW, "nbf": NOW, "sub": "x"}
    assert verifier.verify(request(b"", {"X": token_of({"alg": "HS256"}, right)}), NOW).secret == 0
    assert words in refused(verifier, request(b"", {"X": token_of(head, right | claims)}))


def test_a_signed_form_field_that_repeats_is_refused() -> None:
    right = hmac.new(b"s", f"{NOW}tok".encode(), hashlib.sha256).hexdigest()
    body = urlencode([("timestamp", NOW), ("token", "tok"), ("signature", right), ("token", "evil")]).encode()
    verifier = compile_verifier(row("mailgun_inbound"), ["s"], "signature")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert "token came more than once" in refused(verifier, request(body, form))


def test_the_border_between_time_and_body_cannot_be_moved() -> None:
    key = Ed25519PrivateKey.generate()
    verifier = compile_verifier(row("discord"), [key.public_key().public_bytes_raw().hex()], "signature")
    headers = {"X-Signature-Ed25519": key.sign(b'1{"id":"1"}').hex(), "X-Signature-Timestamp": "1"}
    assert verifier.verify(request(b'{"id":"1"}', headers), NOW).secret == 0
    assert "timestamp" in refused(verifier, request(b'"id":"1"}', headers | {"X-Signature-Timestamp": "1{"}))


@pytest.mark.parametrize("when", ["2025-05-01T10:00:00", "2025-05-01", "9999-99-99T00:00:00Z", "", "Z" * 100])
def test_a_time_in_words_needs_its_zone(when: str) -> None:
    stamp, signature = "X-Zendesk-Webhook-Signature-Timestamp", "X-Zendesk-Webhook-Signature"
    verifier = compile_verifier(row("zendesk"), ["s"], "signature")

    def signed(text: str) -> dict[str, str]:
        right = hmac.new(b"s", f"{text}x".encode(), hashlib.sha256).digest()
        return {stamp: text, signature: base64.b64encode(right).decode()}

    assert verifier.verify(request(b"x", signed("2025-05-01T10:00:00Z")), NOW).secret == 0
    assert "time zone" in refused(verifier, request(b"x", signed(when)))
