"""Signatures: recorded requests are judged right, and nothing but a right signature passes."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import time
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.forging import forge
from accept.signed import (
    CASES,
    MENDED,
    NOW,
    URL,
    VECTORS,
    configured,
    named,
    recorded,
    refused,
    request,
    row,
    secret_for,
    verifier_of,
)
from oncebox.accept.presets import PRESETS
from oncebox.accept.signature import Verified, compile_verifier, parse_signature
from oncebox.accept.spec import Timestamp
from oncebox.errors import ConfigError

BODY = b'{"id":"evt_1","webhookTimestamp":1746093600000,"time_ms":1746093600000}'
HEADERS = {"Content-Type": "application/json", "webhook-id": "msg_1", "svix-id": "msg_1"}


GITHUB, STRIPE = row("github"), row("stripe")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
@pytest.mark.parametrize("table", ["presets", "rows"])
def test_a_recorded_request_is_judged_as_a_careful_receiver_would(vector: dict[str, Any], table: str) -> None:
    name = vector["provider"]
    if table == "presets":
        spec = parse_signature(CASES["presets"][name], "signature")
    else:
        spec = parse_signature(MENDED.get(name, {}), "signature", base=PRESETS[name].signature)
    verifier = compile_verifier(*configured(spec, vector["secret"]), "signature")
    wanted = vector.get("strict_valid", vector["valid"])
    if wanted:
        assert verifier.verify(recorded(vector), vector["now"]) == Verified(spec.scheme, 0)
    else:
        refused(verifier, recorded(vector), vector["now"])


def test_all_recorded_requests_are_there() -> None:
    assert len(VECTORS) == 196
    assert sum(vector.get("strict_valid", vector["valid"]) for vector in VECTORS) == 72


@given(st.sampled_from(named("hmac")), st.text(), st.binary(max_size=200))
def test_what_is_signed_verifies_and_anything_else_does_not(name: str, seed: str, extra: bytes) -> None:
    spec = row(name)
    timed = spec.timestamp is not None and spec.timestamp.from_.startswith("json:")
    body = BODY if timed else BODY + extra
    headers = dict(HEADERS)
    if "{form_sorted}" in spec.message:
        body, headers["Content-Type"] = urlencode({"a": extra}).encode(), "application/x-www-form-urlencoded"
    secret, other = secret_for(spec, seed), secret_for(spec, seed + "x")
    verifier = compile_verifier(spec, [other, secret], "signature")
    added = compile_verifier(spec, [secret], "signature").sign(body, method="POST", url=URL, headers=headers, now=NOW)
    assert verifier.verify(request(body, headers | added), NOW) == Verified("hmac", 1)
    changed = body[:-1] + bytes([body[-1] ^ 1])
    for wrong, bad in ((verifier, changed), (compile_verifier(spec, [other], "signature"), body)):
        detail = refused(wrong, request(bad, headers | added))
        assert secret not in detail
        assert not any(part in detail for value in added.values() for part in value.split(",") if len(part) > 12)


@given(st.sampled_from(named("token")), st.text(min_size=1).filter(str.strip))
def test_a_token_verifies_and_another_one_does_not(name: str, text: str) -> None:
    secret = "t" + text.encode("utf-8", "replace").decode()
    added = compile_verifier(row(name), [secret], "signature").sign(b"", method="POST", url=URL, headers={}, now=NOW)
    verifier = compile_verifier(row(name), ["other", secret], "signature")
    assert verifier.verify(request(b"", added), NOW) == Verified("token", 1)
    refused(compile_verifier(row(name), [secret + "x"], "signature"), request(b"", added))


@given(st.sampled_from(["netlify", "messagebird"]), st.binary(max_size=100))
def test_a_signed_token_binds_the_body(name: str, body: bytes) -> None:
    verifier = compile_verifier(row(name), ["a shared secret"], "signature")
    added = verifier.sign(body, method="POST", url=URL, headers={}, now=NOW)
    assert verifier.verify(request(body, added), NOW) == Verified("jws", 0)
    assert "body is not the one" in refused(verifier, request(body + b"x", added))


def fuzzed_headers() -> st.SearchStrategy[str]:
    """Signature headers: nonsense, near misses and repeats of what is nearly right."""
    marks = ["t=", "v1=", "ts=", "h1=", "v1,", "sha256=", "v0=", "Bearer ", "Basic ", ",", ";", "|", "&", "=", ".", " "]
    values = ["0" * 64, "1746093600", "9" * 30, "-1", "eyJhbGciOiJub25lIn0", "eyJhbGciOiJIUzI1NiJ9", "e30", "AAAA"]
    atoms = st.sampled_from([*marks, *values, "é", "\x00", "nan", "1e999"])
    latin = st.text(st.characters(max_codepoint=255), max_size=60)
    return st.lists(atoms | latin, max_size=20).map("".join)


@given(st.sampled_from(sorted(PRESETS)), fuzzed_headers(), fuzzed_headers())
def test_fuzzed_signatures_are_refused_and_raise_nothing_else(name: str, text: str, other: str) -> None:
    verifier = verifier_of(name)
    spec = row(name)
    headers = {"Content-Type": "application/json", "webhook-id": "1", "svix-id": "1", "x-docusign-signature-1": text}
    kind, _, header = spec.sig.from_.partition(":")
    if kind == "header" or spec.sig.from_ == "basic":
        headers[header or "Authorization"] = text
    if spec.timestamp and spec.timestamp.from_.startswith("header:"):
        headers[spec.timestamp.from_[7:]] = other
    body = json.dumps({"signature": {"signature": text, "timestamp": other}, "Signature": text, "value": [{}]}).encode()
    refused(verifier, request(body, headers, url=f"{URL}?secret={text}"))
    refused(verifier, request(text.encode(), headers))


def test_a_thousand_forged_requests_are_refused_quickly() -> None:
    seed = random.randrange(1 << 32)
    assert forge(1000, seed) == [], seed


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("piece", ["v1=00,", "v1,AA== ", "t=1,", "a|b&", "h1=0;", "0", "é", ".", "sha256="])
def test_an_absurd_header_costs_no_more_than_a_few_milliseconds(name: str, piece: str) -> None:
    text = piece * (60_000 // len(piece))
    spec = row(name)
    header = spec.sig.from_.partition(":")[2] or "Authorization"
    headers = dict(HEADERS) | {header: text, "x-docusign-signature-1": text}
    incoming = request(b"{}", headers)
    took = []
    for _ in range(3):
        start = time.process_time()
        refused(verifier_of(name), incoming)
        took.append(time.process_time() - start)
    assert min(took) < 0.005


def test_of_many_signatures_only_the_first_32_count() -> None:
    verifier = compile_verifier(STRIPE, ["s"], "signature")
    added = verifier.sign(b"x", method="POST", url=URL, headers={}, now=NOW)["Stripe-Signature"]
    stamp, right = added.split(",")
    wrong = "v1=" + "0" * 64
    last = ",".join([stamp, *[wrong] * 31, right])
    assert verifier.verify(request(b"x", {"stripe-signature": last}), NOW).secret == 0
    assert "does not match" in refused(
        verifier, request(b"x", {"stripe-signature": ",".join([stamp, *[wrong] * 32, right])})
    )


def test_a_signature_with_two_different_times_is_refused() -> None:
    verifier = compile_verifier(STRIPE, ["s"], "signature")
    added = verifier.sign(b"x", method="POST", url=URL, headers={}, now=NOW)["Stripe-Signature"]
    assert "two different times" in refused(verifier, request(b"x", {"stripe-signature": f"{added},t=1"}))


@pytest.mark.parametrize(("off", "words"), [(-412, "412 s ahead"), (301, "signed 301 s ago")])
def test_a_clock_that_is_off_is_told_with_its_distance(off: int, words: str) -> None:
    verifier = compile_verifier(STRIPE, ["s"], "signature")
    added = verifier.sign(b"x", method="POST", url=URL, headers={}, now=NOW)
    assert words in refused(verifier, request(b"x", added), NOW + off)
    for edge in (-300, 300):
        assert verifier.verify(request(b"x", added), NOW + edge).secret == 0


def test_another_tolerance_can_be_set_for_a_preset() -> None:
    spec = parse_signature({"tolerance": "10m"}, "signature", base=STRIPE)
    assert spec == msgspec.structs.replace(STRIPE, timestamp=Timestamp("sig:t", "s", 600, 600))
    endless = compile_verifier(parse_signature({"tolerance": "any"}, "s", base=STRIPE), ["s"], "signature")
    added = endless.sign(b"x", method="POST", url=URL, headers={}, now=NOW)
    assert endless.verify(request(b"x", added), NOW + 10**8).secret == 0


def test_the_signature_of_a_zipped_body_is_over_the_bytes_the_rule_says() -> None:
    for over in ("wire", "decoded"):
        verifier = compile_verifier(parse_signature({"over": over}, "s", base=GITHUB), ["s"], "signature")
        signed = b"zipped" if over == "wire" else b"plain"
        right = hmac.new(b"s", signed, hashlib.sha256).hexdigest()
        incoming = msgspec.structs.replace(
            request(b"zipped", {"X-Hub-Signature-256": f"sha256={right}"}), decoded=b"plain"
        )
        assert verifier.verify(incoming, NOW).secret == 0


def test_a_request_without_a_secret_in_the_configuration_never_compiles() -> None:
    for secrets in ([], [""], ["  "], ["good", " "]):
        with pytest.raises(ConfigError, match="secret"):
            compile_verifier(GITHUB, secrets, "sources.gh.signature")
