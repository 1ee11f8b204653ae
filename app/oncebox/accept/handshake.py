"""Handshakes: answers to the requests by which senders try an address out. Pure; nothing is fetched or stored."""

from __future__ import annotations

import difflib
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from oncebox import model
from oncebox.accept.incoming import Incoming
from oncebox.accept.place import FORMS, in_query
from oncebox.accept.spec import Verified, refusal
from oncebox.errors import ConfigError, Rejected

Verify = Callable[[Incoming], Verified]

PLAIN = "text/plain; charset=utf-8"
JSON = "application/json"
LONGEST = 4_096

# A browser that is led to such an address must not run what it finds there.
_AS_TEXT = (("x-content-type-options", "nosniff"),)
_PLAIN_TOKEN = re.compile(r"[A-Za-z0-9_+/=.-]{1,256}")
_HEX = re.compile(rb"[0-9a-f]{20,32}", re.IGNORECASE)
_ORIGIN = re.compile(r"[A-Za-z0-9.:/*-]{1,300}")
_PING = re.compile(rb"webhook_id=[0-9]{1,20}")
_SNS_HOST = re.compile(r"sns\.[a-z0-9-]{3,}\.amazonaws\.com(\.cn)?")


class Reply(model.Reply, frozen=True):
    """What the sender is answered."""

    headers: tuple[tuple[str, str], ...] = ()


class Ours(msgspec.Struct, frozen=True):
    """What a source has to answer with: its secrets, its judge of signatures, and the token of a verification.

    `verify` raises Rejected for a request that is not genuine; it is asked wherever the sender signs its verification
    requests, and always before anything is answered that only somebody with the secret could know.
    """

    secrets: Sequence[str]
    verify: Verify
    token: str = ""

    def __repr__(self) -> str:
        return "Ours(…)"


Handshake = Callable[[Incoming, Ours], Reply | None]


def find_handshake(kind: str, where: str = "handshake") -> Handshake:
    """The handshake of that name: its answer, or None: not one, go on as with any event.

    Raises ConfigError with "did you mean".
    """
    found = HANDSHAKES.get(kind)
    if found is None:
        close = difflib.get_close_matches(kind, HANDSHAKES, 1)
        meant = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(HANDSHAKES)}"
        raise ConfigError(f'{where}: "{kind}" is not known; {meant}')
    return found


def subscribe_url(body: bytes) -> str | None:
    """Where a person or a handler confirms the topic of a stored SubscriptionConfirmation; None if it is not AWS."""
    url = _text(_fields(body).get("SubscribeURL"))
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return url if parts.scheme == "https" and _SNS_HOST.fullmatch(parts.netloc) else None


def _slack(incoming: Incoming, ours: Ours) -> Reply | None:
    fields = _fields_if(incoming, b"url_verification")
    challenge = fields.get("challenge")
    if fields.get("type") != "url_verification" or not isinstance(challenge, str) or len(challenge) > LONGEST:
        return None
    ours.verify(incoming)
    return _text_reply(challenge)


def _meta(incoming: Incoming, ours: Ours) -> Reply | None:
    if incoming.method != "GET" or in_query(incoming.query, b"hub.mode") != b"subscribe":
        return None
    token, challenge = in_query(incoming.query, b"hub.verify_token"), in_query(incoming.query, b"hub.challenge")
    if challenge is None or len(challenge) > LONGEST:
        return None
    if not ours.token:
        raise Rejected(403, "bad-signature", "this source has no verify_token, so nobody can have its URL verified")
    if not hmac.compare_digest(ours.token.encode(), token or b""):
        raise Rejected(403, "bad-signature", "hub.verify_token is not the verify_token of this source")
    return Reply(200, PLAIN, challenge, _AS_TEXT)


def _graph(incoming: Incoming, ours: Ours) -> Reply | None:
    token = in_query(incoming.query, b"validationToken") if not incoming.body else None
    if token is None or len(token) > LONGEST:
        return None
    return Reply(200, PLAIN, token, _AS_TEXT)


def _zoom(incoming: Incoming, ours: Ours) -> Reply | None:
    fields = _fields_if(incoming, b"endpoint.url_validation")
    payload = fields.get("payload")
    if fields.get("event") != "endpoint.url_validation" or not isinstance(payload, dict):
        return None
    # The answer is a MAC under the key that signs events: without these two checks anybody could have events signed.
    secret = ours.secrets[ours.verify(incoming).secret]
    token = payload.get("plainToken")
    if not isinstance(token, str) or not _PLAIN_TOKEN.fullmatch(token):
        raise refusal("plainToken is no plain token, and signing it could sign an event")
    encrypted = hmac.new(secret.encode(), token.encode(), "sha256").hexdigest()
    return _json_reply({"plainToken": token, "encryptedToken": encrypted})


def _okta(incoming: Incoming, ours: Ours) -> Reply | None:
    challenge = incoming.headers.get("x-okta-verification-challenge")
    if incoming.method != "GET" or challenge is None or len(challenge) > LONGEST:
        return None
    return _json_reply({"verification": challenge})


def _dropbox(incoming: Incoming, ours: Ours) -> Reply | None:
    challenge = in_query(incoming.query, b"challenge") if incoming.method == "GET" else None
    if challenge is None or len(challenge) > LONGEST:
        return None
    return Reply(200, PLAIN, challenge, _AS_TEXT)


def _sns(incoming: Incoming, ours: Ours) -> Reply | None:
    """Always None: a SubscriptionConfirmation is an event like any other, of that type.

    It is verified, stored and answered with a 2xx, which is all that SNS asks; whoever then opens its SubscribeURL
    (see `subscribe_url`) confirms the topic. Nothing is fetched because a request says so.
    """
    return None


def _discord(incoming: Incoming, ours: Ours) -> Reply | None:
    fields = _fields_if(incoming, b'"type"')
    kind = fields.get("type")
    # Of the webhook events 0 is the ping and 1 an event, of the interactions 1 is the ping.
    if isinstance(kind, bool) or kind not in (0, 1) or "event" in fields:
        return None
    ours.verify(incoming)
    return _json_reply({"type": 1}) if kind == 1 else Reply(204, JSON, b"")


def _braintree(incoming: Incoming, ours: Ours) -> Reply | None:
    challenge = in_query(incoming.query, b"bt_challenge") if incoming.method == "GET" else None
    if challenge is None:
        return None
    if not _HEX.fullmatch(challenge):
        raise refusal("the challenge is not 20 to 32 hex digits, and signing it could sign an event")
    public, _, private = ours.secrets[0].partition("|")
    key = hashlib.sha1(private.encode()).digest()  # noqa: S324  the sender's own way
    return _text_reply(f"{public}|{hmac.new(key, challenge, 'sha1').hexdigest()}")


def _cloudevents(incoming: Incoming, ours: Ours) -> Reply | None:
    origin = incoming.headers.get("webhook-request-origin", "")
    if incoming.method != "OPTIONS" or not _ORIGIN.fullmatch(origin):
        return None
    rate = incoming.headers.get("webhook-request-rate", "")
    allowed = rate if rate.isascii() and rate.isdigit() and 0 < len(rate) < 10 else "*"
    headers = (("allow", "POST"), ("webhook-allowed-origin", origin), ("webhook-allowed-rate", allowed))
    return Reply(200, PLAIN, b"", headers)


def _woocommerce(incoming: Incoming, ours: Ours) -> Reply | None:
    """The unsigned ping on saving a webhook, which wants exactly 200 and says nothing."""
    if "x-wc-webhook-signature" in incoming.headers or not _PING.fullmatch(incoming.decoded):
        return None
    return Reply(200, PLAIN, b"") if incoming.content_type.lower().startswith(FORMS) else None


def _probe(incoming: Incoming, ours: Ours) -> Reply | None:
    """A GET or HEAD by which a sender sees that somebody is there."""
    return Reply(200, PLAIN, b"") if incoming.method in ("GET", "HEAD") else None


HANDSHAKES: dict[str, Handshake] = {
    "slack": _slack,
    "meta": _meta,
    "graph": _graph,
    "zoom": _zoom,
    "okta": _okta,
    "dropbox": _dropbox,
    "sns": _sns,
    "discord": _discord,
    "braintree": _braintree,
    "cloudevents": _cloudevents,
    "woocommerce": _woocommerce,
    "probe": _probe,
}

# What a verification request carries in its query as a secret, and is therefore never stored.
TOKENS: dict[str, frozenset[str]] = {"meta": frozenset({"hub.verify_token"})}

TOKENED = tuple(HANDSHAKES[name] for name in TOKENS)

# The methods a handshake comes with; events come with POST.
METHODS: dict[str, tuple[str, ...]] = {
    "meta": ("GET",),
    "okta": ("GET",),
    "dropbox": ("GET",),
    "braintree": ("GET",),
    "cloudevents": ("OPTIONS",),
    "probe": ("GET", "HEAD"),
}


def _fields_if(incoming: Incoming, mark: bytes) -> dict[str, Any]:
    """The JSON object of the body, looked at only when it holds the mark: events are not parsed for nothing."""
    if incoming.method != "POST" or mark not in incoming.decoded:
        return {}
    return _fields(incoming.decoded)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _text_reply(text: str) -> Reply:
    return Reply(200, PLAIN, text.encode("utf-8", "replace"), _AS_TEXT)


def _json_reply(value: dict[str, object]) -> Reply:
    return Reply(200, JSON, json.dumps(value, separators=(",", ":")).encode())
