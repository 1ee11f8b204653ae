"""Counterfeits: genuine requests of the senders, shown to a receiver that has other secrets and keys, and bent."""

from __future__ import annotations

import base64
import functools
import json
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from accept.forging import bent
from accept.recordings import body_of, secret_of, signature_of, wanted
from accept.signed import VECTORS, recorded, row, secret_for
from oncebox.accept.incoming import Incoming
from oncebox.accept.signature import Verifier, compile_verifier, parse_signature
from oncebox.accept.spec import SignatureSpec
from oncebox.errors import Rejected

GENUINE = [vector for vector in VECTORS if wanted(vector)]
BY_SENDER = {name: [one for one in GENUINE if one["provider"] == name] for name in {v["provider"] for v in GENUINE}}
SENDERS = sorted(BY_SENDER)
MILLISECONDS = 0.005


class Tally(msgspec.Struct):
    """What came of many counterfeits: what went wrong, and the processor time of the slowest one in milliseconds."""

    wrong: list[str]
    slowest: float = 0.0
    reasons: dict[str, set[str]] = {}


@functools.cache
def _rsa() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def _public(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


@functools.cache
def _certificate() -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "another")])
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(_rsa().public_key())
    built = built.serial_number(1).not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
    signed = built.not_valid_after(datetime(2040, 1, 1, tzinfo=UTC)).sign(_rsa(), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def _elliptic() -> bytes:
    return _public(ec.generate_private_key(ec.SECP256R1()))


def _another(spec: SignatureSpec, genuine: str) -> str:
    """A key or a secret of the right form that the sender does not have."""
    if spec.scheme == "pubkey" and spec.algo == "ed25519":
        return ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    if spec.scheme == "pubkey":
        return _certificate() if spec.pub == "cert-url" else "".join(_elliptic().decode().splitlines()[1:-1])
    if "ES256" in spec.algs or "RS256" in spec.algs:
        return (_elliptic() if "ES256" in spec.algs else _public(_rsa())).decode()
    # Braintree names a public key beside each signature: the right one here.
    return f"{genuine.partition('|')[0]}|another" if spec.key == "sha1(second)" else secret_for(spec, "another")


@functools.cache
def receiver(name: str) -> tuple[str, Verifier]:
    """Its secret and its rule."""
    genuine = BY_SENDER[name][0]
    spec = parse_signature(signature_of(genuine) or {}, "signature", base=row(name))
    secret = _another(spec, secret_of(genuine))
    return secret, compile_verifier(spec, [secret], "signature")


def _bent_token(dice: random.Random, token: str) -> str:
    """A signed token with another head or other claims, or with no signature at all."""
    prefix, blank, token = token.rpartition(" ")
    parts = token.split(".")
    head = dice.choice(
        (
            {"alg": "none"},
            {"alg": "HS256"},
            {"alg": ["RS256"]},
            {"alg": "RS256", "kid": "a"},
            {"alg": "ES256", "crit": []},
        )
    )
    for number, text in (
        (0, json.dumps(head)),
        (1, dice.choice(("{}", "[]", '{"exp":1e999}', "9" * 5000, "[" * 2000))),
    ):
        if dice.random() < 0.4:
            parts[number] = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    if dice.random() < 0.3:
        parts[2] = dice.choice(("", "AA", "A" * 86, "A" * 342, bent(dice, parts[2])))
    return prefix + blank + ".".join(parts)


def _bent_value(dice: random.Random, value: str) -> str:
    chance = dice.random()
    if chance < 0.5:
        return value
    return _bent_token(dice, value) if value.count(".") == 2 and chance < 0.8 else bent(dice, value)


def counterfeit(dice: random.Random) -> tuple[str, Mapping[str, Any], Incoming]:
    """A sender, the genuine request that was taken, and what was made of it."""
    name = dice.choice(SENDERS)
    vector = dice.choice(BY_SENDER[name])
    incoming = recorded(vector)
    headers = {header: _bent_value(dice, value) for header, value in incoming.headers.items()}
    headers = {header: value for header, value in headers.items() if dice.random() < 0.97}
    body = body_of(vector)
    if dice.random() < 0.3:
        body = bent(dice, body.decode("latin-1")).encode("latin-1", "replace")
    url = incoming.url if dice.random() < 0.8 else bent(dice, incoming.url)
    changed = msgspec.structs.replace(
        incoming, headers=headers, body=body, decoded=body, url=url, query=url.partition("?")[2]
    )
    return name, vector, changed


def judge(count: int, seed: int) -> Tally:
    """So many counterfeits: each must be refused as what it is, without any other exception, within milliseconds."""
    dice, tally = random.Random(seed), Tally([])
    for number in range(count):
        name, vector, incoming = counterfeit(dice)
        took = min(_judged(name, vector, incoming, tally, number) for _ in range(2))
        tally.slowest = max(tally.slowest, took * 1000)
        if took > MILLISECONDS:
            tally.wrong.append(f"{number} {name}: {took * 1000:.1f} ms")
    return tally


def _judged(name: str, vector: Mapping[str, Any], incoming: Incoming, tally: Tally, number: int) -> float:
    secret, verifier = receiver(name)
    began = time.thread_time()
    try:
        verifier.verify(incoming, vector["now"])
        tally.wrong.append(f"{number} {name}: accepted {incoming}")
    except Rejected as why:
        if (why.status, why.slug) != (401, "bad-signature"):
            tally.wrong.append(f"{number} {name}: {why.status} {why}")
        if secret in why.detail:
            tally.wrong.append(f"{number} {name}: tells the secret")
        tally.reasons.setdefault(name, set()).add(why.detail)
    except Exception as error:  # noqa: BLE001  # any other exception is what is looked for
        tally.wrong.append(f"{number} {name}: {error!r} of {incoming}")
    return time.thread_time() - began
