"""Signature rules in the configuration: what is understood, and how mistakes are told."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.signed import NOW, URL, request
from oncebox.accept.presets import PRESETS
from oncebox.accept.signature import compile_verifier, credential_places, parse_signature, show_signature
from oncebox.accept.spec import CertUrl, Claims, Sig, SignatureSpec, Timestamp
from oncebox.errors import ConfigError

FLAT = {
    "scheme": "hmac",
    "hash": "sha256",
    "from": "header:X-Signature",
    "encoding": "hex",
    "message": "{body}",
}


def test_the_short_form_is_the_long_form() -> None:
    spec = parse_signature(FLAT, "sources.partner.signature")
    assert spec == SignatureSpec("hmac", Sig("header:X-Signature"))
    long = {"scheme": "hmac", "sig": {"from": "header:X-Signature", "encoding": "hex"}}
    assert parse_signature(long, "sources.partner.signature") == spec


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_s_rule_is_shown_as_configuration_that_reads_back(name: str) -> None:
    spec = PRESETS[name].signature
    assert spec is not None
    assert parse_signature(show_signature(spec), "signature") == spec
    assert parse_signature({}, "signature", base=spec) == spec


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"schema": "hmac"}, 'did you mean "scheme"'),
        ({"scheme": "hmca"}, 'did you mean "hmac"'),
        ({"hash": "sha265"}, 'did you mean "sha256"'),
        ({"encoding": "base46"}, 'did you mean "base64"'),
        ({"hash": ["sha256"]}, "hash"),
        ({"form": "header:X"}, 'did you mean "from"'),
        ({"from": "haeder:X"}, "is no place"),
        ({"from": "header:"}, "is no place"),
        ({"from": 5}, "$.from"),
        ({"sig": 5}, "must be a table"),
        ({"sig": {"syntaxx": "kv"}}, 'did you mean "syntax"'),
        ({"sig": {"syntax": "kv"}}, "sig.key"),
        ({"message": "hello"}, "no placeholder"),
        ({"message": "{ts}.{body}"}, "timestamp"),
        ({"timestamp": {"from": "header:T", "units": "ms"}}, 'did you mean "unit"'),
        ({"timestamp": {"from": "header:T", "past": "soon"}}, '"soon"'),
        ({"timestamp": {"from": "header:T", "past": -1}}, "past"),
        ({"timestamp": {"from": "header:T", "past": True}}, "past"),
        ({"timestamp": {"unit": "ms"}}, "from"),
        ({"algs": ["HS256"]}, 'no meaning with scheme = "hmac"'),
        ({"url_variants": "yes"}, "url_variants"),
        ({5: "x"}, "5"),
        ({"tolerance": "5mm"}, 'signature.tolerance: "5mm"'),
        ({"tolerance": "5m"}, "signature.tolerance: needs to know the time"),
        ({"syntax": "kvv"}, 'signature.syntax: "kvv" is not known; did you mean "kv"'),
        ({"from": "header:X Y"}, "is no place"),
        ({"from": "haeder:X"}, 'did you mean "header:X"'),
        ({"from": "jsn:a.b"}, 'did you mean "json:a.b"'),
        ({"from": "header-numbred:X"}, 'did you mean "header-numbered:X"'),
        ({"message": "{ts}{body}", "timestamp": {"from": "sgi:t"}}, 'did you mean "sig:t"'),
    ],
)
def test_a_mistake_is_told_with_its_key(raw: dict[Any, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=r"sources\.partner\.signature") as told:
        parse_signature({**FLAT, **raw}, "sources.partner.signature")
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"scheme": "hmac"}, 'nothing says where the signature is; set from = "header:NAME"'),
        ({"from": "header:X"}, "nothing says how it signs; set scheme to one of hmac, token, pubkey, jws"),
        ({"scheme": "hmac", "frm": "header:X"}, 'did you mean "from"'),
        ({"schme": "hmac", "from": "header:X"}, 'did you mean "scheme"'),
    ],
)
def test_what_is_missing_in_a_rule_is_named(raw: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=r"^sources\.partner\.signature") as told:
        parse_signature(raw, "sources.partner.signature")
    assert words in str(told.value)


NESTED = [((), field.encode_name) for field in msgspec.structs.fields(SignatureSpec)] + [
    ((name,), field.encode_name)
    for name, part in (("sig", Sig), ("timestamp", Timestamp), ("cert_url", CertUrl), ("claims", Claims))
    for field in msgspec.structs.fields(part)
]


@pytest.mark.parametrize(("above", "key"), NESTED, ids=lambda part: ".".join(part) if part else "")
@pytest.mark.parametrize("spoil", [lambda key: key + "x", lambda key: key[:-1] + key[-1] * 2], ids=["more", "twice"])
def test_every_key_of_a_rule_is_refused_when_misspelt_with_the_right_one_named(
    above: tuple[str, ...], key: str, spoil: Callable[[str], str]
) -> None:
    raw: dict[str, object] = {**FLAT}
    inner: dict[str, object] = {"from": "header:X"} if above in (("sig",), ("timestamp",), ("cert_url",)) else {}
    if above:
        raw[above[0]] = {**inner, spoil(key): "x"}
    else:
        raw[spoil(key)] = "x"
    with pytest.raises(ConfigError) as told:
        parse_signature(raw, "sources.partner.signature")
    where = ".".join(("sources.partner.signature", *above))
    assert str(told.value).startswith(f'{where}: "{spoil(key)}" is not known; did you mean "{key}"?')


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"message": "{bod}"}, "{bod} is no placeholder"),
        ({"message": "{body"}, "brace"),
        ({"message": "{body}{configured_id}"}, "configured_id"),
        ({"message": "{body}{haeder:X}"}, "no place"),
        ({"key": "hex"}, "not hex digits"),
        ({"key": "whsec"}, "not base64"),
        ({"key": "sha1(second)"}, "public key|private key"),
    ],
)
def test_a_rule_that_cannot_work_does_not_compile(raw: dict[str, object], words: str) -> None:
    spec = parse_signature({"scheme": "hmac", "from": "header:X-Signature", "message": "{body}", **raw}, "signature")
    with pytest.raises(ConfigError) as told:
        compile_verifier(spec, ["a secret, not of that form!"], "signature")
    assert words in str(told.value)
    assert "a secret" not in str(told.value)


scalars = st.sampled_from(
    [None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", "any", "5m", "x", "header:X", "{"]
)
json_like = (
    scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(["from", "unit", "past"]), scalars)
)
KEYS = [*FLAT, "sig", "timestamp", "tolerance", "claims", "algs", "each", "algo", "cert_url", "leeway", "x"]


@given(st.dictionaries(st.sampled_from(KEYS), json_like, max_size=5))
def test_nonsense_is_always_a_configuration_error(raw: dict[str, object]) -> None:
    try:
        spec = parse_signature({**FLAT, **raw}, "signature")
        compile_verifier(spec, ["s"], "signature")
    except ConfigError:
        pass


def test_a_hand_written_rule_with_its_own_time_has_the_usual_tolerance() -> None:
    spec = parse_signature({**FLAT, "message": "{ts}:{body}", "timestamp": {"from": "header:X-Time"}}, "signature")
    assert spec.timestamp == Timestamp("header:X-Time", "s", 300, 300)
    verifier = compile_verifier(spec, ["s"], "signature")
    added = verifier.sign(b"x", method="POST", url=URL, headers={}, now=NOW)
    assert added["X-Time"] == str(NOW)
    assert verifier.verify(request(b"x", added), NOW + 300).secret == 0


def test_signing_says_where_it_cannot() -> None:
    for name in ("mailgun", "adyen", "mailchimp", "microsoft_graph"):
        spec = PRESETS[name].signature
        assert spec is not None
        with pytest.raises(ConfigError, match="not into a header"):
            compile_verifier(spec, ["aa"], "signature").sign(b"", method="POST", url=URL, headers={}, now=NOW)


def test_places_of_credentials_are_known() -> None:
    places = {name: credential_places(row.signature) for name, row in PRESETS.items() if row.signature}
    shown = {name: (sorted(headers), sorted(query)) for name, (headers, query) in places.items() if headers or query}
    assert shown == {
        "alertmanager": (["authorization"], []),
        "buildkite_token": (["x-buildkite-token"], []),
        "cloudevents": (["authorization"], []),
        "gitlab": (["x-gitlab-token"], []),
        "google_pubsub": (["authorization"], []),
        "mailchimp": ([], ["secret"]),
        "okta": (["authorization"], []),
        "postmark": (["authorization"], []),
        "telegram": (["x-telegram-bot-api-secret-token"], []),
    }


def test_a_missing_package_is_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncebox.accept.pubkey.find_spec", lambda name: None)
    for name in ("discord", "plaid"):
        spec = PRESETS[name].signature
        assert spec is not None
        with pytest.raises(ConfigError, match=r"pip install 'oncebox\[crypto\]'"):
            compile_verifier(spec, ["00" * 32], "signature")
    assert importlib.util.find_spec("cryptography") is not None
