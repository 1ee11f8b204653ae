"""Keys: the one module that needs the extra `crypto`; it is imported only when a key is configured."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)
from cryptography.x509 import load_pem_x509_certificate

from oncebox.accept.given import DECODERS
from oncebox.accept.spec import Algo, Pub
from oncebox.errors import ConfigError

Check = Callable[[bytes, bytes], bool]


def load_check(algo: Algo, pub: Pub, text: str, what: str) -> Check:
    """A check of one signature under one key; raises ConfigError when the key cannot be read or is of another kind."""
    try:
        key = _load(pub, text)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{what} is not {_WANTED[pub]} (it is not shown)") from None

    if algo == "ed25519" and isinstance(key, ed25519.Ed25519PublicKey):
        return _trying(key.verify)
    if algo == "ecdsa-p256-sha256" and isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1":
        return _trying(lambda signature, data: key.verify(signature, data, ec.ECDSA(hashes.SHA256())))
    if algo in ("rsa-sha256", "rsa-sha1") and isinstance(key, rsa.RSAPublicKey):
        used = hashes.SHA256() if algo == "rsa-sha256" else hashes.SHA1()  # noqa: S303  old signatures of a sender
        return _trying(lambda signature, data: key.verify(signature, data, padding.PKCS1v15(), used))
    raise ConfigError(f"{what} is a key of another kind than {algo or 'signature.algo, which is not set'}")


def _trying(verify: Callable[[bytes, bytes], None]) -> Check:

    def check(signature: bytes, data: bytes) -> bool:
        try:
            verify(signature, data)
        except (InvalidSignature, ValueError):
            return False
        return True

    return check


def _load(pub: Pub, text: str) -> object:

    if "-----BEGIN" in text:
        return _load_pem(text.strip().encode())
    if pub == "ed25519-hex":
        return ed25519.Ed25519PublicKey.from_public_bytes(binascii.unhexlify(text.strip()))
    if pub == "whpk":
        return ed25519.Ed25519PublicKey.from_public_bytes(
            binascii.a2b_base64(text.strip().removeprefix("whpk_"), strict_mode=True)
        )
    if pub == "spki-base64":
        return load_der_public_key(binascii.a2b_base64("".join(text.split()), strict_mode=True))
    raise ValueError(pub)


def _load_pem(data: bytes) -> object:

    if b"-----BEGIN CERTIFICATE" in data:
        return load_pem_x509_certificate(data).public_key()
    if b"PRIVATE KEY-----" in data:
        try:
            return load_pem_private_key(data, password=None).public_key()
        except TypeError:
            raise ValueError("the key has a password") from None
    return load_pem_public_key(data)


def make_signature(algo: Algo, text: str, where: str) -> Callable[[bytes], bytes]:
    """Signs with a PEM private key; without one, signing raises ConfigError."""

    def sign(data: bytes) -> bytes:

        if "PRIVATE KEY-----" not in text:
            raise ConfigError(f"{where}: signing needs the private key in PEM; what is configured can only check")
        key = load_pem_private_key(text.strip().encode(), password=None)
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return key.sign(data)
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(data, ec.ECDSA(hashes.SHA256()))
        if isinstance(key, rsa.RSAPrivateKey) and algo != "rsa-sha1":
            return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
        raise ConfigError(f"{where}: nothing is signed with {algo} here")

    return sign


def to_der(signature: bytes) -> bytes:
    """A signature of two numbers side by side, as tokens carry it, in DER."""
    return encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))


def jwk_to_pem(key: Mapping[str, str]) -> str:
    """A JSON Web Key in PEM; raises ValueError or KeyError for a broken one."""

    def number(name: str) -> int:
        return int.from_bytes(DECODERS["base64url"](key[name].encode()))

    public = (
        rsa.RSAPublicNumbers(number("e"), number("n")).public_key()
        if key["kty"] == "RSA"
        else ec.EllipticCurvePublicNumbers(number("x"), number("y"), ec.SECP256R1()).public_key()
    )
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


_WANTED: dict[Pub, str] = {
    "pem": "a public key or certificate in PEM",
    "cert-url": "the sender's certificate in PEM",
    "ed25519-hex": "an Ed25519 public key of 64 hex digits",
    "spki-base64": "a public key in base64 (SubjectPublicKeyInfo)",
    "whpk": "a public key that begins with whpk_",
}
