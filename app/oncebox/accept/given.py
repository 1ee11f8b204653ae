"""Given signatures: what the sender offers, read out of its header and decoded; never more than 32."""

from __future__ import annotations

import binascii
from collections.abc import Callable

from oncebox.accept.place import LONGEST, Reading, compile_every, compile_place, label
from oncebox.accept.spec import Encoding, Sig, refusal

MOST_SIGNATURES = 32
MOST_PARTS = 64

Given = Callable[[Reading], list[bytes]]
Decode = Callable[[bytes], bytes]


def compile_given(sig: Sig, where: str, *, publics: tuple[bytes, ...] = (), stamp: str = "") -> Given:
    """A reader of the decoded signatures, at least one; raises Rejected with a reason when there is none.

    `publics` are the public names that `pairs` may carry; `stamp` is the name of a `kv` part that must not come twice.
    """
    if sig.syntax == "plain" and not sig.from_.startswith("header-numbered:"):
        return _single(sig, where)
    find = compile_every(sig.from_, where)
    split = _splitter(sig, publics, stamp.encode())
    decode, missing = DECODERS[sig.encoding], f"{label(sig.from_)} is missing"
    nothing = f"{label(sig.from_)} holds no signature{_kind(sig)} in {sig.encoding}"

    def read(reading: Reading) -> list[bytes]:
        texts = [text for text in find(reading) if text is not None]
        if not texts:
            raise refusal(missing)
        found: list[bytes] = []
        for text in texts[:MOST_SIGNATURES]:
            for part in split(_bounded(text), reading):
                try:
                    found.append(decode(part))
                except ValueError:
                    continue
        if not found:
            raise refusal(nothing)
        return found[:MOST_SIGNATURES]

    return read


def write_signature(sig: Sig, signature: bytes, *, stamp: tuple[str, str] | None = None, public: str = "") -> str:
    """The text that carries one signature in the sender's own syntax."""
    text = ENCODERS[sig.encoding](signature).decode("ascii")
    if sig.syntax == "kv":
        parts = [f"{stamp[0]}={stamp[1]}"] if stamp else []
        return sig.delim.join([*parts, f"{sig.key}={sig.prefix}{text}"])
    if sig.syntax == "tagged":
        return f"{sig.tag},{sig.prefix}{text}"
    return f"{public}|{text}" if sig.syntax == "pairs" else sig.prefix + text


def _single(sig: Sig, where: str) -> Given:
    find, name, decode = compile_place(sig.from_, where), label(sig.from_), DECODERS[sig.encoding]
    prefix = sig.prefix.encode()
    skip = len(prefix)

    def read(reading: Reading) -> list[bytes]:
        text = find(reading)
        if text is None:
            raise refusal(f"{name} is missing")
        if skip and not text.startswith(prefix):
            raise refusal(f'{name} does not begin with "{sig.prefix}"')
        try:
            return [decode(_bounded(text)[skip:])]
        except ValueError:
            raise refusal(f"{name} holds no signature in {sig.encoding}") from None

    return read


def _splitter(sig: Sig, publics: tuple[bytes, ...], stamp: bytes) -> Callable[[bytes, Reading], list[bytes]]:
    prefix = sig.prefix.encode()
    if sig.syntax == "kv":
        return _split_kv(sig.delim.encode(), sig.key.encode(), prefix, stamp)
    if sig.syntax == "tagged":
        start = sig.tag.encode() + b"," + prefix
        return lambda text, _: [part[len(start) :] for part in text.split(None, MOST_PARTS) if part.startswith(start)]
    if sig.syntax == "pairs":
        return lambda text, _: [
            value
            for public, _, value in (part.partition(b"|") for part in text.split(b"&", MOST_PARTS))
            if public in publics
        ]
    return lambda text, _: [text[len(prefix) :]] if text.startswith(prefix) else []


def _split_kv(delim: bytes, key: bytes, prefix: bytes, stamp: bytes) -> Callable[[bytes, Reading], list[bytes]]:
    skip = len(prefix)

    def split(text: bytes, reading: Reading) -> list[bytes]:
        fields, found = reading.fields, []
        for part in text.split(delim, MOST_PARTS):
            name, _, value = part.partition(b"=")
            name, value = name.strip(), value.strip()
            if name == key and value.startswith(prefix):
                found.append(value[skip:])
            elif fields.setdefault(name, value) != value and name == stamp:
                raise refusal("the signature carries two different times")
        return found

    return split


def _bounded(text: bytes) -> bytes:
    if len(text) > LONGEST:
        raise refusal("the signature is absurdly long")
    return text


def _kind(sig: Sig) -> str:
    if sig.syntax == "pairs":
        return " for a public key of ours"
    word = {"kv": sig.key, "tagged": sig.tag}.get(sig.syntax, "")
    return f" {word}" if word else ""


def _base64(text: bytes) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _base64url(text: bytes) -> bytes:
    if b"+" in text or b"/" in text:
        raise ValueError("not the URL alphabet")
    plain = text.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    return binascii.a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)


def _to_base64(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False)


def _to_base64url(data: bytes) -> bytes:
    return _to_base64(data).rstrip(b"=").replace(b"+", b"-").replace(b"/", b"_")


DECODERS: dict[Encoding, Decode] = {"hex": binascii.unhexlify, "base64": _base64, "base64url": _base64url}
ENCODERS: dict[Encoding, Decode] = {"hex": binascii.hexlify, "base64": _to_base64, "base64url": _to_base64url}
