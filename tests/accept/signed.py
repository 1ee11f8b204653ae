"""Signed requests as tests write them, and the recorded ones with their answers."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncebox.accept.incoming import Incoming
from oncebox.accept.presets import PRESETS
from oncebox.accept.signature import SignatureSpec, Verifier, compile_verifier, parse_signature
from oncebox.errors import Rejected

NOW = 1_746_093_600
URL = "https://hooks.example.com/in/demo"
CASES: dict[str, Any] = json.loads((Path(__file__).parent.parent / "cases" / "vectors.json").read_text("utf-8"))
VECTORS: list[dict[str, Any]] = CASES["vectors"]

# What a person has to add to these rows before they can be used.
MENDED: dict[str, dict[str, object]] = {
    "google_pubsub": {
        "claims": {"aud": "https://hooks.example.com/pubsub", "match": {"email": "push@p.iam.gserviceaccount.com"}}
    },
}


def request(
    body: bytes = b"", headers: Mapping[str, str] | None = None, *, url: str = URL, method: str = "POST"
) -> Incoming:
    """A request that has been read whole."""
    lowered = {name.lower(): value for name, value in (headers or {}).items()}
    return Incoming(method, url, url.partition("?")[2], lowered, frozenset(), body, body, NOW * 1_000_000)


def recorded(vector: Mapping[str, Any]) -> Incoming:
    """The request of a recorded case."""
    body = base64.b64decode(vector["body_base64"]) if "body_base64" in vector else vector["body"].encode()
    return request(body, vector["headers"], url=vector.get("url", URL), method=vector["method"])


def configured(spec: SignatureSpec, secret: str | Mapping[str, str]) -> tuple[SignatureSpec, list[str]]:
    """The rule and the secrets of a recorded case."""
    if isinstance(secret, str):
        return spec, [secret]
    return msgspec.structs.replace(spec, configured_id=secret["configured_id"]), [secret["cert_pem"]]


def secret_for(spec: SignatureSpec, seed: str) -> str:
    """A made-up secret in the form that a rule's key has."""
    digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()
    if spec.key == "hex":
        return digest.hex()
    if spec.key in ("base64", "whsec"):
        return ("whsec_" if spec.key == "whsec" else "") + base64.b64encode(digest).decode()
    return f"public|{digest.hex()}" if spec.key == "sha1(second)" else f"s3cret {digest.hex()}"


def named(scheme: str) -> list[str]:
    """The presets of a scheme whose signature stands in a header."""
    return [
        name
        for name, row in PRESETS.items()
        if row.signature and row.signature.scheme == scheme and row.signature.sig.from_.startswith("header")
    ]


def row(name: str) -> SignatureSpec:
    """The rule of a preset."""
    spec = PRESETS[name].signature
    assert spec is not None
    return spec


def refused(verifier: Verifier, incoming: Incoming, now: int = NOW) -> str:
    """The reason of a refusal."""
    with pytest.raises(Rejected) as why:
        verifier.verify(incoming, now)
    assert (why.value.status, why.value.slug) == (401, "bad-signature")
    return why.value.detail


@functools.cache
def verifier_of(name: str) -> Verifier:
    """A preset's verifier with the secret of its first recorded case, or a made-up one."""
    vector = next((vector for vector in VECTORS if vector["provider"] == name), None)
    spec = parse_signature(MENDED.get(name, {}), "signature", base=row(name))
    return compile_verifier(*configured(spec, vector["secret"] if vector else secret_for(spec, "x")), "signature")
