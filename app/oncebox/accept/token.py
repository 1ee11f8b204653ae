"""Tokens: a fixed secret that comes with every request."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest

from oncebox.accept.given import ENCODERS
from oncebox.accept.incoming import Incoming
from oncebox.accept.place import Reading, compile_every, label
from oncebox.accept.spec import SignatureSpec, Signer, Verified, Verifier, refusal
from oncebox.errors import ConfigError


def compile_token(spec: SignatureSpec, secrets: Sequence[str], where: str) -> Verifier:
    """A verifier that compares; with `json-every:` each value must be a secret, and an empty list is refused."""
    find, prefix, name = compile_every(spec.sig.from_, f"{where}.from"), spec.sig.prefix.encode(), label(spec.sig.from_)
    # Clients send user names and passwords as UTF-8; a header's other bytes come through as they are.
    wanted = [prefix + secret.encode("utf-8", "surrogatepass") for secret in secrets]
    results = [Verified("token", index) for index in range(len(wanted))]

    def verify(incoming: Incoming, now: int) -> Verified:
        found = find(Reading(incoming))
        if not found or None in found:
            raise refusal(f"{name} is missing")
        indexes = [_index(wanted, value) for value in dict.fromkeys(found) if value is not None]
        if min(indexes) < 0:
            raise refusal(_why(name, spec.sig.prefix, found))
        return results[indexes[0]]

    return Verifier(verify, _compile_signer(spec, secrets[0]))


def _index(wanted: list[bytes], value: bytes) -> int:
    found = -1
    for index, secret in enumerate(wanted):
        if compare_digest(secret, value) and found < 0:
            found = index
    return found


def _why(name: str, prefix: str, found: list[bytes | None]) -> str:
    if prefix and not all(value is not None and value.startswith(prefix.encode()) for value in found):
        return f'{name} does not begin with "{prefix}"'
    return f"{name} holds another secret"


def _compile_signer(spec: SignatureSpec, secret: str) -> Signer:
    kind, _, name = spec.sig.from_.partition(":")

    def sign(incoming: Incoming, now: int) -> dict[str, str]:
        if kind == "basic":
            return {"Authorization": "Basic " + ENCODERS["base64"](secret.encode()).decode("ascii")}
        if kind != "header":
            raise ConfigError(f"this sender puts its secret into {label(spec.sig.from_)}, not into a header")
        return {name: spec.sig.prefix + secret.encode().decode("latin-1")}

    return sign
