"""JWS: signed tokens that claim who sent a request and what its body is."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence

from oncebox.accept.given import DECODERS, ENCODERS
from oncebox.accept.incoming import Incoming
from oncebox.accept.jwk import HASHES, TokenKey, load_keys
from oncebox.accept.mac import MISMATCH
from oncebox.accept.place import LONGEST, Reading, compile_place, label
from oncebox.accept.spec import Alg, Claims, SignatureSpec, Verified, Verifier, refusal
from oncebox.errors import ConfigError


def compile_jws(spec: SignatureSpec, secrets: Sequence[str], where: str) -> Verifier:
    """A verifier of compact tokens under the configured algorithms only; raises ConfigError for what is unfit."""
    _check_claims(spec.claims, where)
    keys = [key for n, secret in enumerate(secrets) for key in load_keys(spec.algs, secret, n, where)]
    find, name = compile_place(spec.sig.from_, f"{where}.from"), label(spec.sig.from_)
    prefix = spec.sig.prefix.encode()
    claims = _compile_claims(spec.claims, spec.leeway, spec.over)
    results = [Verified("jws", index) for index in range(len(secrets))]

    def verify(incoming: Incoming, now: int) -> Verified:
        token = find(Reading(incoming))
        if token is None:
            raise refusal(f"{name} is missing")
        if not token.startswith(prefix):
            raise refusal(f'{name} does not begin with "{spec.sig.prefix}"')
        signed, index = _open(token[len(prefix) :], keys, spec.algs, name)
        claims(signed, incoming, now)
        return results[index]

    return Verifier(verify, _compile_signer(spec, secrets[0], where))


def _open(token: bytes, keys: list[TokenKey], algs: Sequence[Alg], name: str) -> tuple[dict[str, object], int]:
    parts = token.split(b".", 3)
    if len(parts) != 3 or len(token) > LONGEST:
        raise refusal(f"{name} holds no signed token")
    head = _object(parts[0], name)
    alg, kid = head.get("alg"), head.get("kid")
    if alg not in algs or "crit" in head:
        raise refusal(f"{name}: the token is not signed with {' or '.join(algs)}")
    signature, data = _decode(parts[2], name), parts[0] + b"." + parts[1]
    for key in keys:
        check = key.checks.get(str(alg))
        if check and (not key.kid or not isinstance(kid, str) or key.kid == kid) and check(signature, data):
            return _object(parts[1], name), key.secret
    raise refusal(MISMATCH)


def _object(text: bytes, name: str) -> dict[str, object]:
    try:
        value = json.loads(_decode(text, name).decode("utf-8"))
    except (ValueError, RecursionError):
        raise refusal(f"{name} holds no signed token") from None
    if not isinstance(value, dict):
        raise refusal(f"{name} holds no signed token")
    return value


def _decode(text: bytes, name: str) -> bytes:
    try:
        return DECODERS["base64url"](text)
    except ValueError:
        raise refusal(f"{name} holds no signed token") from None


def _check_claims(claims: Claims, where: str) -> None:
    for claim in claims.must_match:
        if not claims.match.get(claim):
            raise ConfigError(
                f"{where}.claims.match.{claim} is not set; without it anybody who can have such a token made would be "
                f'believed: signature = {{ claims = {{ match = {{ {claim} = "…" }} }} }}'
            )


def _compile_claims(claims: Claims, leeway: float, over: str) -> Callable[[dict[str, object], Incoming, int], None]:
    def check(said: dict[str, object], incoming: Incoming, now: int) -> None:
        _check_names(claims, said, incoming.url)
        _check_times(claims, said, now, leeway)
        body = incoming.decoded if over == "decoded" else incoming.body
        _check_hash(claims.body_sha256_hex, said, body, "the body")
        _check_hash(claims.url_sha256_hex, said, incoming.url.encode("utf-8", "surrogatepass"), "the URL")

    return check


def _check_names(claims: Claims, said: dict[str, object], url: str) -> None:
    if claims.iss and said.get("iss") not in claims.iss:
        raise refusal("the token comes from another issuer")
    wanted, audience = url if claims.aud == "{url}" else claims.aud, said.get("aud")
    if wanted and wanted not in (audience if isinstance(audience, list) else [audience]):
        raise refusal(f"the token is made for another audience than {wanted}")
    for name, value in claims.match.items():
        if said.get(name) != value:
            raise refusal(f"the token's claim {name} is another one")


def _check_times(claims: Claims, said: dict[str, object], now: int, leeway: float) -> None:
    if claims.exp and now > _number(said, "exp") + leeway:
        raise refusal("the token has expired")
    if claims.nbf and now < _number(said, "nbf") - leeway:
        raise refusal("the token is not valid yet; the sender's clock may be ahead")
    if claims.iat_max_age:
        age = now - _number(said, "iat")
        if abs(age) > claims.iat_max_age + leeway:
            where = "ago" if age > 0 else "in the future"
            raise refusal(f"the token was made {abs(age):.0f} s {where}; {claims.iat_max_age:.0f} s are allowed")


def _check_hash(name: str, said: dict[str, object], data: bytes, what: str) -> None:
    if not name:
        return
    value = said.get(name)
    if not isinstance(value, str) or not value.isascii():
        raise refusal(f"the token has no claim {name}")
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest(), value.lower()):
        raise refusal(f"{what} is not the one whose hash is in the token")


def _number(said: dict[str, object], name: str) -> float:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise refusal(f"the token has no time {name}")
    return value


def _compile_signer(spec: SignatureSpec, secret: str, where: str) -> Callable[[Incoming, int], dict[str, str]]:
    def sign(incoming: Incoming, now: int) -> dict[str, str]:
        kind, _, header = spec.sig.from_.partition(":")
        alg = next((alg for alg in spec.algs if alg in HASHES), None)
        if alg is None or kind != "header":
            raise ConfigError(f"{where}: only tokens of a shared secret in a header can be made here")
        parts = [{"alg": alg, "typ": "JWT"}, _claims_for(spec.claims, incoming, now)]
        text = b".".join(ENCODERS["base64url"](json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        signature = hmac.digest(secret.encode("utf-8", "surrogatepass"), text, HASHES[alg])
        return {header: spec.sig.prefix + (text + b"." + ENCODERS["base64url"](signature)).decode("ascii")}

    return sign


def _claims_for(claims: Claims, incoming: Incoming, now: int) -> dict[str, object]:
    said: dict[str, object] = {"iat": now, "exp": now + 60, "nbf": now, **claims.match}
    if claims.iss:
        said["iss"] = claims.iss[0]
    if claims.aud:
        said["aud"] = incoming.url if claims.aud == "{url}" else claims.aud
    if claims.body_sha256_hex:
        said[claims.body_sha256_hex] = hashlib.sha256(incoming.body).hexdigest()
    if claims.url_sha256_hex:
        said[claims.url_sha256_hex] = hashlib.sha256(incoming.url.encode()).hexdigest()
    return said
