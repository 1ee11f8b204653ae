"""Public keys: signatures that anybody can check and only the sender can make."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from urllib.parse import urlsplit

from oncebox.accept.given import compile_given
from oncebox.accept.incoming import Incoming
from oncebox.accept.mac import MISMATCH, compile_signer, compile_stamp, stamp_field
from oncebox.accept.message import compile_message
from oncebox.accept.place import Reading, compile_place, label
from oncebox.accept.spec import Algo, CertUrl, SignatureSpec, Verified, Verifier, refusal
from oncebox.errors import ConfigError

MISMATCH_KEY = MISMATCH.replace("secret", "key")


def compile_pubkey(spec: SignatureSpec, secrets: Sequence[str], where: str) -> Verifier:
    """A verifier with configured keys or certificates; none is ever fetched. Raises ConfigError for an unfit key."""
    need_crypto(where)
    from oncebox.accept.keys import load_check, make_signature  # noqa: PLC0415  an extra

    algos = _BY_VERSION if spec.algo == "rsa-by-json" else {"": spec.algo}
    checks = [
        {version: load_check(algo, spec.pub, secret, f"{where}: key {n}") for version, algo in algos.items()}
        for n, secret in enumerate(secrets, 1)
    ]
    given = compile_given(spec.sig, f"{where}.from", stamp=stamp_field(spec.timestamp))
    message = compile_message(spec, where)
    take, within = compile_stamp(spec, where)
    pinned = _compile_pin(spec.cert_url, where) if spec.cert_url else None
    results = [Verified("pubkey", index) for index in range(len(checks))]

    def verify(incoming: Incoming, now: int) -> Verified:
        reading = Reading(incoming)
        signatures = given(reading)
        take(reading)
        if pinned:
            pinned(reading)
        version = _version(reading) if "" not in algos else ""
        data = message(reading)
        for index, check in enumerate(checks):
            if any(check[version](signature, data) for signature in signatures):
                within(reading.ts, now)
                return results[index]
        raise refusal(MISMATCH_KEY)

    return Verifier(verify, compile_signer(spec, message, make_signature(spec.algo, secrets[0], where)))


def need_crypto(where: str) -> None:
    """Raises ConfigError with the command to run when the extra is not installed."""
    if find_spec("cryptography") is None:
        raise ConfigError(f"{where}: signatures with public keys need one more package: pip install 'oncebox[crypto]'")


def _version(reading: Reading) -> str:
    fields = reading.json()
    version = fields.get("SignatureVersion") if isinstance(fields, dict) else None
    if isinstance(version, str) and version in _BY_VERSION:
        return version
    raise refusal('JSON field SignatureVersion is neither "1" nor "2"')


def _compile_pin(spec: CertUrl, where: str) -> Callable[[Reading], None]:
    find, name = compile_place(spec.from_, f"{where}.cert_url.from"), label(spec.from_)
    try:
        host, path = re.compile(spec.host), re.compile(spec.path)
    except re.error as error:
        raise ConfigError(f"{where}.cert_url: not a regular expression: {error}") from None

    def check(reading: Reading) -> None:
        raw = find(reading)
        if raw is None:
            raise refusal(f"{name} is missing")
        try:
            parts = urlsplit(raw[:2_048].decode("ascii"))
            standard = parts.netloc in (parts.hostname, f"{parts.hostname}:443")
        except ValueError:
            raise refusal(f"{name} is no URL") from None
        if parts.scheme != "https" or not standard or not host.fullmatch(parts.netloc.removesuffix(":443")):
            raise refusal(f"{name} does not point to the sender")
        if not path.fullmatch(parts.path):
            raise refusal(f"{name} does not point to a certificate of the sender")

    return check


_BY_VERSION: dict[str, Algo] = {"1": "rsa-sha1", "2": "rsa-sha256"}
