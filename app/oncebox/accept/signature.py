"""Signatures: a few generic schemes, read from configuration, compiled once, that verify and sign."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from oncebox.accept.jws import compile_jws
from oncebox.accept.mac import compile_mac
from oncebox.accept.place import compile_every, compile_place
from oncebox.accept.pubkey import compile_pubkey
from oncebox.accept.spec import (
    ANY_AGE,
    CertUrl,
    Claims,
    Sig,
    SignatureSpec,
    Timestamp,
    Verified,
    Verifier,
    refusal,
)
from oncebox.accept.token import compile_token
from oncebox.duration import seconds
from oncebox.errors import ConfigError
from oncebox.wording import closest

__all__ = [
    "Sig",
    "SignatureSpec",
    "Timestamp",
    "Verified",
    "Verifier",
    "compile_verifier",
    "credential_places",
    "parse_signature",
    "refusal",
    "show_signature",
]

_PARTS: dict[str, type[msgspec.Struct]] = {"sig": Sig, "timestamp": Timestamp, "cert_url": CertUrl, "claims": Claims}
_SHORTHAND = ("from", "encoding", "prefix", "syntax", "delim", "tag")
_OF_MAC = {"hash", "key", "message", "over", "timestamp", "configured_id", "each"}
_OF_MAC |= {"url_variants", "url_unescape", "body_hash_query", "hash_from"}
_OF = {
    "hmac": _OF_MAC,
    "token": set[str](),
    "pubkey": {"algo", "pub", "cert_url", "message", "over", "timestamp", "configured_id"},
    "jws": {"algs", "claims", "leeway", "over"},
}


def parse_signature(raw: Mapping[str, object], where: str, base: SignatureSpec | None = None) -> SignatureSpec:
    """A signature rule from configuration; `base` is the preset's rule, of which single keys may be overridden.

    `from`, `encoding`, `prefix`, `syntax`, `delim` and `tag` may stand at the top; `tolerance` sets both limits of the
    timestamp. Raises ConfigError with "did you mean" for keys and values that are not known.
    """
    _check_written(raw, where, base)
    given = _tidy(raw, where)
    if base is not None:
        given = _merged(show_signature(base), given)
    _check_keys(given, where)
    try:
        spec = msgspec.convert(given, SignatureSpec, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_as_written(str(error), raw)}") from None
    _check_scheme(spec, given, where)
    return spec


def show_signature(spec: SignatureSpec) -> dict[str, object]:
    """The rule as plain data that `parse_signature` reads back; what is the default is left out."""
    shown: dict[str, object] = msgspec.to_builtins(spec)
    shown.setdefault("scheme", spec.scheme)
    stamp = shown.get("timestamp")
    if isinstance(stamp, dict):
        shown["timestamp"] = {key: "any" if value == ANY_AGE else value for key, value in stamp.items()}
    return shown


def compile_verifier(spec: SignatureSpec, secrets: Sequence[str], where: str) -> Verifier:
    """The rule with its secrets, keys or certificates, all of which may sign.

    Raises ConfigError where a secret is missing, empty or unfit, or a package is needed.
    """
    if not secrets:
        raise ConfigError(f'{where}: needs at least one secret: secrets = ["env:NAME"]')
    for number, secret in enumerate(secrets, 1):
        if not secret.strip():
            raise ConfigError(f"{where}: secret {number} is empty; an empty secret would let anybody in")
    if spec.scheme == "hmac":
        return compile_mac(spec, secrets, where)
    if spec.scheme == "token":
        return compile_token(spec, secrets, where)
    if spec.scheme == "pubkey":
        return compile_pubkey(spec, secrets, where)
    return compile_jws(spec, secrets, where)


def credential_places(spec: SignatureSpec) -> tuple[frozenset[str], frozenset[str]]:
    """The headers (lower-case) and the query parameters that carry a credential itself, and must not be stored."""
    kind, _, name = spec.sig.from_.partition(":")
    if spec.sig.from_ == "basic":
        kind, name = "header", "authorization"
    bearer = spec.scheme == "token" or name.lower() == "authorization"
    headers = frozenset({name.lower()}) if bearer and kind == "header" else frozenset[str]()
    return headers, frozenset({name}) if bearer and kind == "query" else frozenset[str]()


def _check_written(raw: Mapping[str, object], where: str, base: SignatureSpec | None) -> None:
    """What a message names must stand in the file: the short forms are looked at before they are spelled out."""
    words = {field.encode_name: _words(typing.get_type_hints(Sig)[field.name]) for field in msgspec.structs.fields(Sig)}
    for key in _SHORTHAND:
        if key in raw and words[key] and raw[key] not in words[key]:
            raise ConfigError(f'{where}.{key}: "{raw[key]}" is not known{_meant(str(raw[key]), words[key])}')
    if "tolerance" in raw:
        _age(raw["tolerance"], f"{where}.tolerance")
        if "timestamp" not in raw and (base is None or base.timestamp is None):
            raise ConfigError(f'{where}.tolerance: needs to know the time: timestamp = {{ from = "header:NAME" }}')
    if base is None and not any(key == "scheme" or closest(str(key), ("scheme",)) for key in raw):
        raise ConfigError(f"{where}: nothing says how it signs; set scheme to one of {', '.join(_OF)}")
    near = ("from", "sig")
    if base is None and not any(key in near or closest(str(key), near) for key in raw):
        raise ConfigError(f'{where}: nothing says where the signature is; set from = "header:NAME"')


def _as_written(error: str, raw: Mapping[str, object]) -> str:
    """A key of `sig` by the name at the top, where it was written there."""
    return re.sub(r"\$\.sig\.(\w+)", lambda found: f"$.{found[1]}" if found[1] in raw else found[0], error)


def _tidy(raw: Mapping[str, object], where: str) -> dict[str, object]:
    """The shorthand spelled out: parts of `sig` into `sig`, `tolerance` and durations into seconds."""
    given = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    short = {key: given.pop(key) for key in _SHORTHAND if key in given}
    if short:
        given["sig"] = {**_table(given.get("sig", {}), f"{where}.sig"), **short}
    if "tolerance" in given:
        limits = {"past": given["tolerance"], "future": given.pop("tolerance")}
        given["timestamp"] = {**limits, **_table(given.get("timestamp", {}), f"{where}.timestamp")}
    stamp = given.get("timestamp")
    if isinstance(stamp, dict):
        given["timestamp"] = {
            key: _age(value, f"{where}.timestamp.{key}") if key in ("past", "future") else value
            for key, value in stamp.items()
        }
    return given


def _table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f'{where} must be a table, such as {{ from = "header:X-Signature" }}')
    return dict(value)


def _age(value: object, where: str) -> object:
    if value == "any":
        return ANY_AGE
    if isinstance(value, str):
        try:
            return seconds(value)
        except ValueError as error:
            raise ConfigError(f'{where}: {error}, seconds as a number, or "any"') from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f'{where} must be a duration such as "5m", seconds as a number, or "any"')
    return value


def _merged(base: dict[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    stamp = merged.get("timestamp")
    if isinstance(stamp, dict):
        merged["timestamp"] = {key: ANY_AGE if value == "any" else value for key, value in stamp.items()}
    return merged


def _check_keys(given: Mapping[str, object], where: str) -> None:
    _known(given, SignatureSpec, where, also=(*_SHORTHAND, "tolerance"))
    for name, part in _PARTS.items():
        if given.get(name) is not None:
            _known(_table(given[name], f"{where}.{name}"), part, f"{where}.{name}")


def _known(given: Mapping[str, object], struct: type[msgspec.Struct], where: str, also: Iterable[str] = ()) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    hints = typing.get_type_hints(struct)
    for key, value in given.items():
        if key not in fields:
            raise ConfigError(f'{where}: "{key}" is not known{_meant(str(key), [*fields, *also])}')
        allowed = _words(hints[fields[key].name])
        for word in value if isinstance(value, list | tuple) else [value]:
            if allowed and word not in allowed:
                raise ConfigError(f'{where}.{key}: "{word}" is not known{_meant(str(word), allowed)}')


def _words(hint: object) -> list[str]:
    if typing.get_origin(hint) is typing.Literal:
        return [str(word) for word in typing.get_args(hint)]
    if typing.get_origin(hint) is tuple:
        return _words(typing.get_args(hint)[0])
    return []


def _meant(word: str, known: Iterable[str]) -> str:
    words = [other for other in known if other]
    close = difflib.get_close_matches(word, words, 1)
    return f'; did you mean "{close[0]}"?' if close else f"; known are {', '.join(sorted(words))}"


def _check_scheme(spec: SignatureSpec, given: Mapping[str, object], where: str) -> None:
    strange = set(given) - _OF[spec.scheme] - {"scheme", "sig"}
    if strange:
        raise ConfigError(f'{where}.{min(strange)} has no meaning with scheme = "{spec.scheme}"')
    if spec.sig.syntax == "kv" and not (spec.sig.key and spec.sig.delim):
        raise ConfigError(f'{where}.sig.key must name the part that holds the signature, such as "v1"')
    if spec.timestamp:
        compile_place(spec.timestamp.from_, f"{where}.timestamp.from")
    elif "{ts}" in spec.message:
        raise ConfigError(f'{where}: {{ts}} in the message needs a timestamp = {{ from = "header:NAME" }}')
    if "{" not in spec.message:
        raise ConfigError(
            f'{where}.message has no placeholder: nothing of the request would be signed; write "{{body}}"'
        )
    if len({alg[:2] == "HS" for alg in spec.algs}) > 1:
        raise ConfigError(f"{where}.algs mixes a shared secret (HS…) with public keys; allow one kind only")
    if spec.scheme == "pubkey" and not spec.algo:
        raise ConfigError(f'{where}.algo is needed: "ed25519", "ecdsa-p256-sha256" or "rsa-sha256"')
    compile_every(spec.sig.from_, f"{where}.from")
