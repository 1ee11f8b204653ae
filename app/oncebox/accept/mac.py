"""MACs: signatures made with a shared secret."""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable, Sequence

from oncebox.accept.given import compile_given, write_signature
from oncebox.accept.incoming import Incoming
from oncebox.accept.message import compile_message, url_spellings
from oncebox.accept.place import Reading, compile_place, label, parse_json, pointer_steps, walk
from oncebox.accept.spec import Hash, Key, SignatureSpec, Timestamp, Verified, Verifier, refusal
from oncebox.accept.stamp import compile_limits, write_stamp
from oncebox.errors import ConfigError

Judge = Callable[[Reading, int], int]

MOST_ITEMS = 10_000
MISMATCH = "the signature does not match: signed with another secret, or the body was changed on the way"


def compile_mac(spec: SignatureSpec, secrets: Sequence[str], where: str) -> Verifier:
    """A verifier of HMAC signatures; raises ConfigError for a secret that cannot be the key."""
    keys = [derive_key(spec.key, secret, f"{where}: secret {n}") for n, secret in enumerate(secrets, 1)]
    judge = _compile_judge(spec, keys, secrets, where)
    results = [Verified("hmac", index) for index in range(len(keys))]

    each = _compile_each(spec.each, judge)

    def verify(incoming: Incoming, now: int) -> Verified:
        return results[judge(Reading(incoming), now)]

    def verify_each(incoming: Incoming, now: int) -> Verified:
        return results[each(incoming, now)]

    signer = _compile_signer(spec, keys[0], secrets[0], where)
    return Verifier(verify_each if spec.each else verify, signer)


def derive_key(kind: Key, secret: str, what: str) -> bytes:
    """The key's bytes behind a configured text; raises ConfigError that does not show it."""
    try:
        key = _DERIVE[kind](secret)
    except ValueError as error:
        raise ConfigError(f'{what} cannot be the key of this sender (key = "{kind}"): {error}') from None
    if not key:
        raise ConfigError(f"{what} gives an empty key; an empty key would let anybody in")
    return key


def hash_named(text: bytes) -> Hash:
    """The hash in a `k=v` list such as `key=…,algorithm=HMAC_SHA256`; raises Rejected for any other."""
    for part in text.split(b",", 16):
        name, _, value = part.strip().partition(b"=")
        if name == b"algorithm" and value in _HASH_NAMES:
            return _HASH_NAMES[value]
    raise refusal("the request names no hash that is known here")


def stamp_field(stamp: Timestamp | None) -> str:
    """The part of a `kv` signature that carries the time, or ""."""
    return stamp.from_[4:] if stamp and stamp.from_.startswith("sig:") else ""


def compile_stamp(spec: SignatureSpec, where: str) -> tuple[Callable[[Reading], None], Callable[[bytes, int], None]]:
    """A step that puts the time as it was sent into the reading, and the check of its limits."""
    if spec.timestamp is None:
        return (lambda reading: None), (lambda raw, now: None)
    find, missing = compile_place(spec.timestamp.from_, f"{where}.timestamp.from"), _no_stamp(spec.timestamp.from_)

    def take(reading: Reading) -> None:
        raw = find(reading)
        if raw is None:
            raise refusal(missing)
        reading.ts = raw

    return take, compile_limits(spec.timestamp)


def _compile_judge(spec: SignatureSpec, keys: list[bytes], secrets: Sequence[str], where: str) -> Judge:
    publics = tuple(secret.partition("|")[0].encode() for secret in secrets) if spec.sig.syntax == "pairs" else ()
    given = compile_given(spec.sig, f"{where}.from", publics=publics, stamp=stamp_field(spec.timestamp))
    message = compile_message(spec, where)
    take, within = compile_stamp(spec, where)
    named = compile_place(spec.hash_from, f"{where}.hash_from") if spec.hash_from else None
    timed, signed_time, fixed = spec.timestamp is not None, "{ts}" in spec.message, spec.hash
    spellings = _compile_spellings(spec)

    def judge(reading: Reading, now: int) -> int:
        signatures = given(reading)
        if signed_time:
            take(reading)
        named_hash = named(reading) if named else None
        used = hash_named(named_hash) if named_hash is not None else fixed
        index = match(keys, message(reading), signatures, used)
        if index < 0 and spellings:
            index = match_spellings(
                reading, spellings(reading.url), lambda: match(keys, message(reading), signatures, used)
            )
        if index < 0:
            raise refusal(MISMATCH)
        if timed:
            if not signed_time:
                take(reading)
            within(reading.ts, now)
        return index

    return judge


def match(keys: list[bytes], message: bytes, signatures: list[bytes], used: Hash) -> int:
    """The index of the key that made one of the signatures, or -1."""
    for index, key in enumerate(keys):
        right = hmac.digest(key, message, used)
        for signature in signatures:
            if hmac.compare_digest(right, signature):
                return index
    return -1


def match_spellings(reading: Reading, urls: list[str], attempt: Callable[[], int]) -> int:
    """The first index that is found with the URL spelled in one of these ways, or -1."""
    for url in urls:
        reading.url = url
        index = attempt()
        if index >= 0:
            return index
    return -1


def _compile_spellings(spec: SignatureSpec) -> Callable[[str], list[str]] | None:
    if not (spec.url_variants or spec.url_unescape):
        return None
    return lambda url: url_spellings(url, ports=spec.url_variants, unescape=spec.url_unescape)[1:]


def _compile_each(pointer: str, judge: Judge) -> Callable[[Incoming, int], int]:
    steps = pointer_steps(pointer)

    def verify(incoming: Incoming, now: int) -> int:
        items = walk(parse_json(incoming.decoded), steps)
        if not isinstance(items, list) or not 0 < len(items) <= MOST_ITEMS:
            raise refusal(f"no items at {pointer} (or more than {MOST_ITEMS}); each carries its own signature")
        found = [judge(Reading(incoming, item), now) for item in items]
        return found[0]

    return verify


def _compile_signer(
    spec: SignatureSpec, key: bytes, secret: str, where: str
) -> Callable[[Incoming, int], dict[str, str]]:
    message = compile_message(spec, where)

    def make(data: bytes) -> bytes:
        return hmac.digest(key, data, spec.hash)

    return compile_signer(spec, message, make, public=secret.partition("|")[0])


def compile_signer(
    spec: SignatureSpec, message: Callable[[Reading], bytes], make: Callable[[bytes], bytes], *, public: str = ""
) -> Callable[[Incoming, int], dict[str, str]]:
    """A maker of headers: the time where the sender puts it, and the signature that `make` gives for the message."""
    kind, _, name = spec.sig.from_.partition(":")
    header = name + "1" if kind == "header-numbered" else name
    stamp = spec.timestamp

    def sign(incoming: Incoming, now: int) -> dict[str, str]:
        if kind not in ("header", "header-numbered"):
            raise ConfigError(f"this sender puts its signature into {label(spec.sig.from_)}, not into a header")
        added: dict[str, str] = {}
        reading = Reading(incoming)
        written = write_stamp(stamp, now) if stamp else ""
        if stamp and stamp.from_.startswith("header:"):
            added[stamp.from_[7:]] = written
        reading.ts = written.encode()
        field = stamp_field(stamp)
        signature = make(message(reading))
        added[header] = write_signature(spec.sig, signature, stamp=(field, written) if field else None, public=public)
        return added

    return sign


def _no_stamp(place: str) -> str:
    name = place.partition(":")[2]
    return f"the signature carries no {name}=" if place.startswith("sig:") else f"{label(place)} is missing"


def _from_base64(text: str) -> bytes:
    plain = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return binascii.a2b_base64((plain + "=" * (-len(plain) % 4)).encode("ascii"), strict_mode=True)
    except ValueError:
        raise ValueError('it is not base64 (if the sender uses the text itself, say key = "utf8")') from None


def _from_hex(text: str) -> bytes:
    try:
        return binascii.unhexlify(text.strip())
    except ValueError:
        raise ValueError("it is not hex digits in pairs") from None


def _second(text: str) -> bytes:
    _, bar, second = text.partition("|")
    if not bar or not second:
        raise ValueError('it must be "public key|private key"')
    return hashlib.sha1(second.encode()).digest()  # noqa: S324  the sender's own way


_DERIVE: dict[Key, Callable[[str], bytes]] = {
    "utf8": lambda text: text.encode("utf-8", "surrogatepass"),
    "base64": _from_base64,
    "whsec": lambda text: _from_base64(text.strip().removeprefix("v1,").removeprefix("whsec_")),
    "hex": _from_hex,
    "sha1": lambda text: hashlib.sha1(text.encode()).digest(),  # noqa: S324  the sender's own way
    "sha1(second)": _second,
}
_HASH_NAMES: dict[bytes, Hash] = {b"HMAC_SHA1": "sha1", b"HMAC_SHA256": "sha256", b"HMAC_SHA512": "sha512"}
