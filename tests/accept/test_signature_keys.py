"""Public keys: each kind of key signs and verifies, and a key of another kind is told at the start."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from accept.signed import NOW, URL, request
from oncebox.accept.presets import PRESETS
from oncebox.accept.signature import SignatureSpec, Verified, compile_verifier, parse_signature
from oncebox.accept.spec import Claims, Sig
from oncebox.errors import ConfigError, Rejected

ED = ed25519.Ed25519PrivateKey.generate()
EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)
PRIVATE = {
    name: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    for name, key in (("ed25519", ED), ("ecdsa-p256-sha256", EC), ("rsa-sha256", RSA))
}
PUBLIC = {
    name: key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for name, key in (("ed25519", ED), ("ecdsa-p256-sha256", EC), ("rsa-sha256", RSA))
}


def rule(algo: str) -> SignatureSpec:
    raw = {"scheme": "pubkey", "algo": algo, "from": "header:X-Sig", "encoding": "base64", "message": "{body}"}
    return parse_signature(raw, "signature")


@pytest.mark.parametrize("algo", sorted(PRIVATE))
def test_a_private_key_signs_what_its_public_key_verifies(algo: str) -> None:
    added = compile_verifier(rule(algo), [PRIVATE[algo]], "s").sign(b"x", method="POST", url=URL, headers={}, now=NOW)
    verifier = compile_verifier(rule(algo), [PUBLIC[algo]], "s")
    assert verifier.verify(request(b"x", added), NOW) == Verified("pubkey", 0)
    with pytest.raises(Rejected, match="another key"):
        verifier.verify(request(b"y", added), NOW)
    with pytest.raises(ConfigError, match="private key"):
        verifier.sign(b"x", method="POST", url=URL, headers={}, now=NOW)


@pytest.mark.parametrize("algo", sorted(PRIVATE))
@pytest.mark.parametrize("kind", sorted(PRIVATE))
def test_a_key_of_another_kind_is_told(algo: str, kind: str) -> None:
    if algo == kind:
        return
    with pytest.raises(ConfigError, match="another kind"):
        compile_verifier(rule(algo), [PUBLIC[kind]], "signature")


def test_a_text_that_is_no_key_is_told_and_not_shown() -> None:
    for name in ("discord", "sendgrid", "aws_sns", "plaid"):
        spec = PRESETS[name].signature
        assert spec is not None
        for text in (
            "no key at all",
            "-----BEGIN PUBLIC KEY-----\nno key at all\n-----END PUBLIC KEY-----",
            "{no key at all",
        ):
            with pytest.raises(ConfigError, match="key 1") as told:
                compile_verifier(spec, [text], "signature")
            assert "at all" not in str(told.value)


def test_a_rotation_of_public_keys_has_no_gap() -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    spec = PRESETS["discord"].signature
    assert spec is not None
    added = {"X-Signature-Ed25519": ED.sign(b"1x").hex(), "X-Signature-Timestamp": "1"}
    verifier = compile_verifier(spec, [other, ED.public_key().public_bytes_raw().hex()], "signature")
    assert verifier.verify(request(b"x", added), NOW) == Verified("pubkey", 1)


def test_the_second_generation_of_standard_webhooks_verifies() -> None:
    public = "whpk_" + base64.b64encode(ED.public_key().public_bytes_raw()).decode()
    raw = {
        "scheme": "pubkey", "algo": "ed25519", "pub": "whpk", "from": "header:webhook-signature", "encoding": "base64",
        "syntax": "tagged", "tag": "v1a", "message": "{header:webhook-id}.{ts}.{body}",
        "timestamp": {"from": "header:webhook-timestamp"},
    }  # fmt: skip
    signature = base64.b64encode(ED.sign(f"m.{NOW}.x".encode())).decode()
    headers = {"webhook-id": "m", "webhook-timestamp": str(NOW), "webhook-signature": f"v1,AAAA v1a,{signature}"}
    verifier = compile_verifier(parse_signature(raw, "signature"), [public], "signature")
    assert verifier.verify(request(b"x", headers), NOW) == Verified("pubkey", 0)


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def es256_token(kid: str) -> str:
    text = f"{encode(json.dumps({'alg': 'ES256', 'kid': kid}).encode())}.{encode(b'{}')}"
    r, s = decode_dss_signature(EC.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{text}.{encode(r.to_bytes(32) + s.to_bytes(32))}"


def key_set() -> str:
    numbers = EC.public_key().public_numbers()
    mine = {
        "kty": "EC",
        "crv": "P-256",
        "kid": "mine",
        "x": encode(numbers.x.to_bytes(32)),
        "y": encode(numbers.y.to_bytes(32)),
    }
    modulus = RSA.public_key().public_numbers().n
    other = {"kty": "RSA", "kid": "other", "e": "AQAB", "n": encode(modulus.to_bytes(256))}
    return json.dumps({"keys": [other, {"kty": "OKP", "crv": "Ed25519", "x": "AA"}, mine]})


def test_a_key_set_is_looked_up_by_the_token_s_key_id() -> None:
    spec = SignatureSpec("jws", Sig("header:X"), algs=("ES256",), claims=Claims())
    verifier = compile_verifier(spec, [key_set()], "signature")
    assert verifier.verify(request(b"", {"X": es256_token("mine")}), NOW) == Verified("jws", 0)
    with pytest.raises(Rejected, match="does not match"):
        verifier.verify(request(b"", {"X": es256_token("unknown")}), NOW)


def test_a_public_key_is_never_taken_for_a_shared_secret() -> None:
    raw = {"scheme": "jws", "algs": ["HS256", "RS256"], "from": "header:X"}
    with pytest.raises(ConfigError, match="shared secret"):
        parse_signature(raw, "signature")


def test_google_s_tokens_need_the_sender_s_account() -> None:
    spec = PRESETS["google_pubsub"].signature
    assert spec is not None
    with pytest.raises(ConfigError, match="email"):
        compile_verifier(spec, [PUBLIC["rsa-sha256"]], "signature")


def test_a_certificate_address_must_be_the_sender_s() -> None:
    spec = PRESETS["paypal"].signature
    assert spec is not None
    spec = msgspec.structs.replace(spec, configured_id="W")
    verifier = compile_verifier(spec, [PUBLIC["rsa-sha256"]], "signature")
    good = "https://api.paypal.com/v1/notifications/certs/C"
    headers = {"PAYPAL-TRANSMISSION-ID": "i", "PAYPAL-TRANSMISSION-TIME": "t"}
    signer = compile_verifier(spec, [PRIVATE["rsa-sha256"]], "signature")
    headers |= signer.sign(b"x", method="POST", url=URL, headers=headers, now=NOW)
    assert verifier.verify(request(b"x", headers | {"PAYPAL-CERT-URL": good}), NOW).secret == 0
    for bad in (
        good.replace("https", "http"), good.replace("api.", "evil."), good.replace(".com", ".com.evil.example"),
        good.replace("https://", "https://user@"), good.replace(".com", ".com:8443"), "https://[", "é", "",
        "https://api.paypal.com/evil",
    ):  # fmt: skip
        with pytest.raises(Rejected, match="PAYPAL-CERT-URL"):
            verifier.verify(request(b"x", headers | {"PAYPAL-CERT-URL": bad}), NOW)
