"""JWKs: the keys of signed tokens, configured as a shared secret, as PEM or as a JSON Web Key Set."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from oncebox.accept.pubkey import need_crypto
from oncebox.accept.spec import Alg, Algo, Hash
from oncebox.errors import ConfigError

Check = Callable[[bytes, bytes], bool]

HASHES: dict[str, Hash] = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}

_ALGOS: dict[str, Algo] = {"RS256": "rsa-sha256", "ES256": "ecdsa-p256-sha256"}


class TokenKey:
    """One configured key: the checks it can do by algorithm, and its `kid` if it has one."""

    __slots__ = ("checks", "kid", "secret")

    def __init__(self, secret: int, checks: Mapping[str, Check], kid: str = "") -> None:
        self.secret, self.checks, self.kid = secret, checks, kid


def load_keys(algs: Sequence[Alg], secret: str, index: int, where: str) -> list[TokenKey]:
    """The keys in one configured text; raises ConfigError when it holds none that fits the algorithms."""
    shared = _hmac_checks(algs, secret)
    if shared:
        # One text is never both a shared secret and a public key: that mix-up is how tokens get forged.
        return [TokenKey(index, shared)]
    if not algs:
        raise ConfigError(f'{where}.algs is empty; say which algorithms are allowed, such as algs = ["HS256"]')
    what = f"{where}: key {index + 1}"
    need_crypto(where)
    if not secret.lstrip().startswith("{"):
        return [TokenKey(index, _checks(algs, secret, what))]
    found = []
    for text, kid in _key_set(secret, what):
        # A set may well hold keys for other uses.
        with suppress(ConfigError):
            found.append(TokenKey(index, _checks(algs, text, what), kid))
    if not found:
        raise ConfigError(f"{what} holds no key for {' or '.join(algs)}")
    return found


def _checks(algs: Sequence[Alg], text: str, what: str) -> dict[str, Check]:
    from oncebox.accept.keys import load_check  # noqa: PLC0415  an extra

    found: dict[str, Check] = {}
    why: ConfigError | None = None
    for alg in algs:
        try:
            found[alg] = _adapted(alg, load_check(_ALGOS[alg], "pem", text, what))
        except ConfigError as error:
            why = error
    if not found and why:
        raise why
    return found


def _hmac_checks(algs: Sequence[Alg], secret: str) -> dict[str, Check]:
    key = secret.encode("utf-8", "surrogatepass")

    def made(used: Hash) -> Check:
        return lambda signature, data: hmac.compare_digest(hmac.digest(key, data, used), signature)

    return {alg: made(HASHES[alg]) for alg in algs if alg in HASHES}


def _adapted(alg: Alg, check: Check) -> Check:
    from oncebox.accept.keys import to_der  # noqa: PLC0415  an extra

    if alg == "RS256":
        return check
    return lambda signature, data: len(signature) == 64 and check(to_der(signature), data)


def _key_set(text: str, what: str) -> list[tuple[str, str]]:
    """Each key of a JWK or JWKS as PEM with its kid; keys of other kinds are passed over."""
    from oncebox.accept.keys import jwk_to_pem  # noqa: PLC0415  an extra

    try:
        value = json.loads(text)
        keys = value.get("keys", [value])
        fit = [key for key in keys if key.get("kty") == "RSA" or key.get("crv") == "P-256"]
        return [(jwk_to_pem(key), str(key.get("kid", ""))) for key in fit]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{what} is no JSON Web Key Set (it is not shown)") from None
