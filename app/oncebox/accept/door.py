"""Door: one source as its requests are checked and read, compiled from its configuration. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from urllib.parse import unquote_plus
from uuid import UUID

import msgspec

from oncebox import model
from oncebox.accept.batch import BadItem, Batch, split
from oncebox.accept.handshake import TOKENED, Handshake, Ours, Reply
from oncebox.accept.incoming import Incoming
from oncebox.accept.key import Fields, Found
from oncebox.accept.spec import Verified, Verifier
from oncebox.address import host_name, host_of, is_loopback
from oncebox.body import decode
from oncebox.errors import Rejected
from oncebox.model import Arrival, Refused

UNSIGNED = Verified("unsigned", -1)
TRUSTED = Verified("trusted", -1)
# Headers that carry a secret itself, whether or not it is looked at here.
CREDENTIALS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "x-api-key",
        "x-auth-token",
        "x-gitlab-token",
        "x-buildkite-token",
        "x-telegram-bot-api-secret-token",
    }
)
Pairs = tuple[tuple[str, str], ...]
_FORWARDED = ("forwarded", "x-forwarded-for", "via")
_LOOPBACK = ("127.", "::1", "::ffff:127.")
_PAGE = "a page of another site may not send to it; programs send no Origin header"


def _zero(_bits: int) -> int:
    return 0


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """What one source takes. `hidden` headers and query parameters carry secrets and are never stored; `secretless`
    then says that what is kept of a request cannot be verified again.

    `events` are the methods that bring events, `methods` these and the ones of the handshake. `window` is in
    microseconds, `random` gives so many random bits. `bad_signature` is the status for a wrong signature. `hosts` are
    the names that it is called by besides those of this machine; None: any.
    """

    source: str
    limit: int
    fields: Fields
    events: frozenset[str] = frozenset({"POST"})
    methods: frozenset[str] = frozenset({"POST"})
    verifier: Verifier | None = None
    unverified: Verified = UNSIGNED
    keys: tuple[str, ...] = ()
    bad_signature: int = 401
    greeting: Handshake | None = None
    token: str = ""
    batch: Batch | None = None
    encoding: str = ""
    reply: model.Reply | None = None
    on_missing: str = "reject"
    random: Callable[[int], int] = _zero
    window: int = 0
    reject_conflict: bool = False
    hidden: frozenset[str] = CREDENTIALS
    hidden_query: frozenset[str] = frozenset({"access_token"})
    secretless: bool = False
    loopback_only: bool = False
    hosts: frozenset[str] | None = None
    url: str | None = None

    @property
    def needs_token(self) -> bool:
        """Whether its handshake asks for a token and none is configured."""
        return self.greeting in TOKENED and not self.token

    def signed_url(self, called: str, query: str) -> str:
        """The URL that the sender signs: the configured one with the query that came, whatever a proxy made of it."""
        if self.url is None:
            return called
        return self.url if "?" in self.url or not query else f"{self.url}?{query}"

    def admit(self, method: str, headers: Mapping[str, str], peer: str | None) -> None:
        """Refuse what is refused before the body is read: other methods (405), strangers at a local source (401), the
        name of another server (400)."""
        if method not in self.methods:
            allowed = ", ".join(sorted(self.methods))
            raise Rejected(405, "bad-request", f"this source takes {allowed}, not {method[:20]}", (("allow", allowed),))
        if self.loopback_only:
            self._admit_local(headers, peer)
        if self.hosts is not None:
            self._admit_host(headers.get("host"), self.hosts)

    def _admit_local(self, headers: Mapping[str, str], peer: str | None) -> None:
        for name in _FORWARDED:
            if name in headers:
                words = f"this source takes requests from this machine only, and {name} says that it was forwarded"
                raise Rejected(401, "unauthorized", words)
        if peer is not None and not peer.startswith(_LOOPBACK):
            raise Rejected(401, "unauthorized", "this source takes requests from this machine only")
        origin = headers.get("origin")
        if origin is not None and not _is_ours(host_of(origin), self.hosts or frozenset()):
            raise Rejected(401, "unauthorized", f"this source takes requests from this machine only: {_PAGE}")

    @staticmethod
    def _admit_host(host: str | None, hosts: frozenset[str]) -> None:
        """Who leads a browser here by a name of his own (DNS rebinding) gives himself away by that name."""
        if host is not None and not _is_ours(host_name(host), hosts):
            named = f'this source is not called "{host[:80]}"; if it is, set server.public_url to that'
            raise Rejected(400, "bad-request", named)

    def open(self, request: Incoming) -> Incoming:
        """The request with its body decoded; raises Rejected 415, and 413 for what is too large once decoded."""
        encoding = self.encoding_of(request)
        if not encoding:
            return request
        return msgspec.structs.replace(request, decoded=decode(request.body, encoding, self.limit))

    def encoding_of(self, request: Incoming) -> str:
        """The body's content encoding, "" for none: as the request says, else as the source is configured."""
        named = request.headers.get("content-encoding")
        if named is None:
            return self.encoding
        named = named.strip().lower()
        return "" if named == "identity" else named

    def greet(self, incoming: Incoming) -> Reply | None:
        """The answer to a verification request, which is no event; raises Rejected 401 where it must be signed, and
        405 for what its method says is a verification request and is none."""
        reply = None
        if self.greeting is not None:
            reply = self.greeting(incoming, Ours(self.keys, self.verify, self.token))
        if reply is None and incoming.method not in self.events:
            words = f"a {incoming.method} here is a verification request, and this is none"
            raise Rejected(405, "bad-request", words, (("allow", ", ".join(sorted(self.events))),))
        return reply

    def verify(self, incoming: Incoming) -> Verified:
        """What proved the request genuine; raises Rejected 401."""
        if self.verifier is None:
            return self.unverified
        return self.verifier.verify(incoming, incoming.arrived // 1_000_000)

    def arrivals(self, incoming: Incoming, verified: str) -> list[Arrival]:
        """The events of a request, each with its id; raises Rejected 400, of a batch naming the item."""
        headers = self.kept_headers(incoming)
        if self.batch is None or not self.is_batch(incoming):
            return [self._arrival(incoming, verified, headers, self.fields.read(incoming))]
        arrivals, envelope = [], self.fields.envelope(incoming)
        for index, item in enumerate(split(incoming.decoded, self.batch, incoming.content_type)):
            try:
                found = self.fields.read(incoming, item, envelope, index)
                arrivals.append(self._arrival(incoming, verified, headers, found, item))
            except Rejected as why:
                raise BadItem(index, why) from None
        return arrivals

    def is_batch(self, incoming: Incoming) -> bool:
        """Whether a request brings a list of events."""
        return self.batch is not None and self.batch.applies(incoming.content_type)

    def _arrival(
        self, incoming: Incoming, verified: str, headers: Pairs, found: Found, item: bytes | None = None
    ) -> Arrival:
        if item is None or self.batch is None:
            body, decoded, content_type = incoming.body, incoming.decoded, incoming.content_type
            encoding = self.encoding_of(incoming) or None
        else:
            body, decoded, content_type, encoding = item, item, self.batch.content_type, None
        digest = sha256(decoded).digest()
        return Arrival(
            source=self.source,
            id=found.id if found.id is not None else self._own_id(found, digest, incoming.arrived),
            type=found.type,
            received_at=incoming.arrived,
            headers=headers,
            content_type=content_type,
            encoding=encoding,
            body=body,
            decoded=decoded,
            body_hash=digest,
            verified=verified,
            reply=self.reply,
            reject_conflict=self.reject_conflict,
            window=self.window if found.id is None else 0,
        )

    def trusting(self) -> Door:
        """The same door without its look at signatures."""
        return msgspec.structs.replace(self, verifier=None, unverified=TRUSTED)

    def _own_id(self, found: Found, digest: bytes, now: int) -> str:
        """The id of an event that brings none, as the source is configured."""
        if self.on_missing == "body-hash":
            return f"sha256-{digest.hex()}"
        if self.on_missing == "unique":
            return unique_id(now, self.random(74))
        assert found.missing is not None
        raise found.missing

    def kept_headers(self, incoming: Incoming) -> Pairs:
        """The headers without those that carry secrets, and without NUL, which no store takes as text."""
        hidden, headers = self.hidden, incoming.headers
        pairs = [(name, value) for name, value in headers.items() if name not in hidden]
        if "\0" in "".join(headers.values()):
            pairs = [(name, value.replace("\0", "")) for name, value in pairs]
        if incoming.repeated:
            pairs = [(name, part) for name, value in pairs for part in _repeats(name, value, incoming.repeated)]
        return tuple(pairs)

    def refused(self, incoming: Incoming, why: Rejected) -> Refused:
        """What is kept of a request that is turned away: the signature too, secrets not."""
        return Refused(
            source=self.source,
            at=incoming.arrived,
            slug=why.slug,
            detail=why.detail,
            method=incoming.method,
            url=without_parameters(_called(incoming), self.hidden_query),
            headers=self.kept_headers(incoming),
            body=incoming.body,
        )


def _is_ours(name: str, hosts: frozenset[str]) -> bool:
    return name in hosts or is_loopback(name)


def _called(incoming: Incoming) -> str:
    """The URL with the query that came, which a configured URL may have replaced."""
    path = incoming.url.partition("?")[0]
    return f"{path}?{incoming.query}" if incoming.query else path


def _repeats(name: str, value: str, repeated: frozenset[str]) -> list[str]:
    """A header that came several times, as it came: joined with ", " again it is the same, and known as repeated."""
    return value.split(", ") if name in repeated else [value]


def unique_id(now: int, random: int) -> str:
    """An id made here, marked so, in the order of time (a UUID of version 7). `random` has 74 bits."""
    high, low = divmod(random & (1 << 74) - 1, 1 << 62)
    return f"oncebox-{UUID(int=now // 1000 << 80 | 7 << 76 | high << 64 | 2 << 62 | low)}"


def without_parameters(url: str, names: frozenset[str]) -> str:
    """The URL without the query parameters of these names; the rest stays as it is written."""
    path, mark, query = url.partition("?")
    kept = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]) not in names]
    return f"{path}?{'&'.join(kept)}" if mark and kept else path
