"""Preset: what is known about one sender, as one row of data, and short ways to write a row."""

from __future__ import annotations

import msgspec

from oncebox.accept.spec import ANY_AGE, Encoding, Hash, Key, Sig, SignatureSpec, Timestamp, Unit
from oncebox.model import Reply

OK = Reply(200, "text/plain; charset=utf-8", b"")
TIMELESS = (
    'Nothing in a request says when it was signed: with on_missing_id = "unique" one that is captured and sent again '
    "is another event."
)


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One sender.

    `id` (a tuple is a composite), `type` and `time` are extractors; with `batch` (`array`, `array:/pointer`, `ndjson`,
    `cloudevents`) they start at the item. `id` None: the sender has no usable one, and `on_missing_id` says what each
    choice means. `encoding` is the Content-Encoding of bodies that do not name theirs; which bytes are signed is
    `signature.over`. `signs_identity` False: neither id nor time is signed, so whoever captures one request can send
    it again as a new event. `bad_signature` is the status this sender wants for a wrong signature.
    """

    name: str
    signature: SignatureSpec | None
    id: str | tuple[str, ...] | None = None
    type: str | None = None
    time: str | None = None
    batch: str | None = None
    encoding: str | None = None
    handshake: str | None = None
    reply: Reply | None = None
    methods: tuple[str, ...] = ("POST",)
    on_missing_id: str = ""
    signs_identity: bool = True
    bad_signature: int = 401
    note: str = ""


def mac(
    place: str,
    message: str = "{body}",
    *,
    hash: Hash = "sha256",
    encoding: Encoding = "hex",
    prefix: str = "",
    key: Key = "utf8",
    timestamp: Timestamp | None = None,
) -> SignatureSpec:
    """An HMAC that stands alone in its place, which is a header unless it says otherwise."""
    sig = Sig(place if ":" in place else f"header:{place}", encoding, prefix)
    return SignatureSpec("hmac", sig, hash, key, message, timestamp=timestamp)


def mac_list(
    header: str, key: str, message: str = "{body}", *, delim: str = ",", stamp: Timestamp | None = None
) -> SignatureSpec:
    """HMACs in a list such as `t=1,v1=…,v1=…`."""
    sig = Sig(f"header:{header}", syntax="kv", key=key, delim=delim)
    return SignatureSpec("hmac", sig, message=message, timestamp=stamp)


def standard(prefix: str, key: Key = "whsec") -> SignatureSpec:
    """The Standard Webhooks way, under that prefix of its three headers."""
    return SignatureSpec(
        "hmac",
        Sig(f"header:{prefix}-signature", "base64", syntax="tagged"),
        key=key,
        message=f"{{header:{prefix}-id}}.{{ts}}.{{body}}",
        timestamp=Timestamp(f"header:{prefix}-timestamp"),
    )


def token(place: str, prefix: str = "") -> SignatureSpec:
    """A fixed secret in a place, which is a header unless it says otherwise."""
    return SignatureSpec("token", Sig(place if ":" in place or place == "basic" else f"header:{place}", prefix=prefix))


def within(place: str, limit: float = 300, unit: Unit = "s") -> Timestamp:
    """A time that may be so many seconds off, both ways."""
    return Timestamp(place, unit, limit, limit)


def unlimited(place: str, unit: Unit = "s") -> Timestamp:
    """A time that takes part in the signature and may be of any age: the sender promises none."""
    return Timestamp(place, unit, ANY_AGE, ANY_AGE)


def no_id(why: str, *, equal: str) -> str:
    """The sentence for a sender without a usable id; `equal` says what two equal bodies are with this sender."""
    return (
        f'{why} Set id, or on_missing_id: "reject" turns every request without an id away; "body-hash" takes two equal '
        f'bodies for one event ({equal}); "unique" makes each request its own event, so what the sender repeats is '
        "processed again."
    )
