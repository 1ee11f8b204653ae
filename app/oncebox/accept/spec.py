"""Signature specs: the vocabulary in which a sender's signature is described, as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from oncebox.accept.incoming import Incoming
from oncebox.errors import Rejected

ANY_AGE = math.inf
TOLERANCE = 300.0

Scheme = Literal["hmac", "token", "pubkey", "jws"]
Hash = Literal["sha1", "sha256", "sha384", "sha512"]
Key = Literal["utf8", "base64", "whsec", "hex", "sha1", "sha1(second)"]
Encoding = Literal["hex", "base64", "base64url"]
Syntax = Literal["plain", "kv", "tagged", "pairs"]
Unit = Literal["s", "ms", "iso"]
Algo = Literal["", "ed25519", "ecdsa-p256-sha256", "rsa-sha256", "rsa-sha1", "rsa-by-json"]
Pub = Literal["pem", "ed25519-hex", "spki-base64", "whpk", "cert-url"]
Alg = Literal["HS256", "HS384", "HS512", "RS256", "ES256"]
Over = Literal["wire", "decoded"]


class Sig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the signature stands and how it is written.

    `from` is `header:NAME`, `header-numbered:PREFIX` (…1 to …100), `form:NAME`, `query:NAME`, `json:a.b.0.c`,
    `json-every:list[].field`, `body:/pointer` or `basic`. `syntax` is `plain`, `kv` (`k=v` parts, `key` names the
    signatures), `tagged` (`tag,value` parts between blanks) or `pairs` (`public|signature` parts between `&`).
    """

    from_: str = msgspec.field(name="from")
    encoding: Encoding = "hex"
    prefix: str = ""
    syntax: Syntax = "plain"
    key: str = ""
    delim: str = ","
    tag: str = "v1"


class Timestamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where the time of signing stands (also `sig:KEY`, a part of a `kv` signature); limits are in seconds."""

    from_: str = msgspec.field(name="from")
    unit: Unit = "s"
    past: float = TOLERANCE
    future: float = TOLERANCE


class CertUrl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a request names its certificate, and the host and path (regular expressions) that this may have."""

    from_: str = msgspec.field(name="from")
    host: str = ""
    path: str = ""


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a token must claim.

    `aud = "{url}"` is the URL the sender called. Claims named in `must_match` have to be configured in `match`.
    """

    iss: tuple[str, ...] = ()
    aud: str = ""
    body_sha256_hex: str = ""
    url_sha256_hex: str = ""
    exp: bool = False
    nbf: bool = False
    iat_max_age: float = 0
    match: dict[str, str] = {}
    must_match: tuple[str, ...] = ()


class SignatureSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One sender's signature rule; which fields take part depends on `scheme`.

    `message` is a template of literals and `{body} {ts} {url} {method} {form_sorted} {crc32} {configured_id} {sns}
    {header:NAME} {form:NAME} {query:NAME} {json:path}` (`{json?:path}`: empty where absent). `over` says
    whether `{body}` is what came over the wire or what is left when its Content-Encoding is undone. With `each`, a
    pointer to an array in the body, every item carries its own signature and `json:` paths start at the item.
    """

    scheme: Scheme
    sig: Sig
    hash: Hash = "sha256"
    key: Key = "utf8"
    message: str = "{body}"
    over: Over = "wire"
    timestamp: Timestamp | None = None
    each: str = ""
    url_variants: bool = False
    url_unescape: str = ""
    body_hash_query: str = ""
    hash_from: str = ""
    algo: Algo = ""
    pub: Pub = "pem"
    cert_url: CertUrl | None = None
    configured_id: str = ""
    algs: tuple[Alg, ...] = ()
    claims: Claims = Claims()
    leeway: float = 0


class Verified(msgspec.Struct, frozen=True):
    """A request proved genuine; `secret` is the index of the secret that did it."""

    scheme: str
    secret: int


Signer = Callable[[Incoming, int], dict[str, str]]


class Verifier(msgspec.Struct, frozen=True):
    """A compiled signature rule with its secrets.

    `verify(incoming, now)` returns which secret signed, or raises Rejected with a reason in words that holds neither
    the secret nor the right signature. `now` is in unix seconds.
    """

    verify: Callable[[Incoming, int], Verified]
    signer: Signer

    def sign(self, body: bytes, *, method: str, url: str, headers: Mapping[str, str], now: int) -> dict[str, str]:
        """The headers to add, signed with the first secret; raises ConfigError where the sender's way needs more."""
        lowered = {name.lower(): value for name, value in headers.items()}
        query = url.partition("#")[0].partition("?")[2]
        unsigned = Incoming(method, url, query, lowered, frozenset(), body, body, now * 1_000_000)
        return self.signer(unsigned, now)

    def __repr__(self) -> str:
        return "Verifier(…)"


def refusal(detail: str) -> Rejected:
    """The refusal of a request that is not proved genuine."""
    return Rejected(401, "bad-signature", detail)
