"""The senders' own libraries as witnesses: each signs requests in its way, and judges requests in its way.

A witness knows nothing of us. Where its library cannot sign, `sign` is None and the library only judges.
"""

from __future__ import annotations

import hashlib
import hmac
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import gocardless_pro.webhooks
import msgspec
import pusher
import standardwebhooks
import stripe
import svix
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from discord_interactions import verify_key
from gocardless_pro.errors import InvalidSignatureError
from sendgrid.helpers.eventwebhook import EventWebhook
from slack_sdk.signature import SignatureVerifier
from twilio.request_validator import RequestValidator

from senders import node

with warnings.catch_warnings():
    # It names a deprecated module of its own at import.
    warnings.simplefilter("ignore")
    import braintree

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
URL = "https://hooks.example.com/in/it?a=1"
EVENTS = b'{"events":[]}'
BODIES = (b'{"id":"evt_1","type":"a","n":1}', b"{}", '{"id":"é \\u00e9 \U0001f600"}'.encode(), b'{ "id" : 1 }\r\n')
FORMS = (b"Body=Hello+there&From=%2B1&To=%2B2&To=%2B2", b"A=&B=%C3%A9%20%26&a=1", b"x=y")

Headers = dict[str, str]


class Witness(msgspec.Struct, frozen=True, kw_only=True):
    """A sender's library. `judge` says whether it takes a request; its clock is the machine's."""

    secret: str
    judge: Callable[[bytes, Headers], bool]
    sign: Callable[[bytes], Headers] | None = None
    fixed: tuple[bytes, ...] = BODIES
    fresh: Callable[[], bytes] | None = None
    content_type: str = JSON
    checks_time: bool = False
    own: Mapping[str, str] = {}
    needs_node: bool = False

    @property
    def bodies(self) -> tuple[bytes, ...]:
        """What it sends; one that tells the time tells that of now."""
        return self.fixed if self.fresh is None else (self.fresh(),)


def taken(check: Callable[[], object], *refusals: type[Exception]) -> bool:
    """Whether a library that raises for what it refuses has not raised."""
    try:
        check()
    except refusals:
        return False
    return True


def _stripe() -> Witness:
    secret = "whsec_test_secret"

    def sign(body: bytes) -> Headers:
        now = int(time.time())
        signature = stripe.WebhookSignature._compute_signature(f"{now}.{body.decode()}", secret)
        return {"Stripe-Signature": f"t={now},v1={signature}"}

    def judge(body: bytes, headers: Headers) -> bool:
        def check() -> object:
            return stripe.WebhookSignature.verify_header(body.decode(), headers["Stripe-Signature"], secret, 300)

        return taken(check, stripe.SignatureVerificationError)

    return Witness(secret=secret, sign=sign, judge=judge, checks_time=True)


def _standard() -> Witness:
    secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
    library = standardwebhooks.Webhook(secret)

    def sign(body: bytes) -> Headers:
        now = datetime.now(UTC)
        signature = library.sign("msg_1", now, body.decode())
        return {
            "webhook-id": "msg_1",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": f"v1,bm9uZQ== {signature}",
        }

    def judge(body: bytes, headers: Headers) -> bool:
        lowered = {name.lower(): value for name, value in headers.items()}
        return taken(lambda: library.verify(body, lowered), standardwebhooks.WebhookVerificationError)

    return Witness(secret=secret, sign=sign, judge=judge, checks_time=True, own={"webhook-id": "msg_1"})


def _svix() -> Witness:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    library = svix.Webhook(secret)

    def sign(body: bytes) -> Headers:
        now = datetime.now(UTC)
        signature = library.sign("msg_1", now, body.decode())
        return {"svix-id": "msg_1", "svix-timestamp": str(int(now.timestamp())), "svix-signature": signature}

    def judge(body: bytes, headers: Headers) -> bool:
        lowered = {name.lower(): value for name, value in headers.items()}
        return taken(lambda: library.verify(body, lowered), svix.WebhookVerificationError)

    return Witness(secret=secret, sign=sign, judge=judge, checks_time=True, own={"svix-id": "msg_1"})


def _slack() -> Witness:
    secret = "8f742231b10e8888abcd99yyyzzz85a5"
    library = SignatureVerifier(secret)

    def sign(body: bytes) -> Headers:
        now = str(int(time.time()))
        signature = library.generate_signature(timestamp=now, body=body)
        assert signature is not None
        return {"X-Slack-Request-Timestamp": now, "X-Slack-Signature": signature}

    def judge(body: bytes, headers: Headers) -> bool:
        now, signature = headers["X-Slack-Request-Timestamp"], headers["X-Slack-Signature"]
        return bool(library.is_valid(body=body, timestamp=now, signature=signature))

    return Witness(secret=secret, sign=sign, judge=judge, checks_time=True)


class Fields(dict[str, str]):
    """A form as web frameworks give it: the library asks for all values of a field."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def getlist(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]


def _twilio() -> Witness:
    secret = "12345"
    library = RequestValidator(secret)

    def params(body: bytes) -> Fields:
        return Fields(parse_qsl(body.decode(), keep_blank_values=True))

    return Witness(
        secret=secret,
        sign=lambda body: {"X-Twilio-Signature": str(library.compute_signature(URL, params(body)))},
        judge=lambda body, headers: bool(library.validate(URL, params(body), headers["X-Twilio-Signature"])),
        fixed=FORMS,
        content_type=FORM,
    )


def _gocardless() -> Witness:
    secret = "ED7D658C-D8EB-4941-948B-3973214F2D49"

    def judge(body: bytes, headers: Headers) -> bool:
        header = headers["Webhook-Signature"]
        return taken(lambda: gocardless_pro.webhooks.parse(body, secret, header), InvalidSignatureError)

    return Witness(secret=secret, judge=judge, fixed=(EVENTS, EVENTS + b" "))


def _pusher() -> Witness:
    secret = "7ad3773142a6692b25b8"
    library = pusher.Pusher(app_id="1", key="k", secret=secret)

    def fresh() -> bytes:
        return msgspec.json.encode({"time_ms": int(time.time() * 1000), "events": [{"name": "a"}]})

    def judge(body: bytes, headers: Headers) -> bool:
        return library.validate_webhook("k", headers["X-Pusher-Signature"], body.decode()) is not None

    return Witness(secret=secret, judge=judge, fresh=fresh)


def _sendgrid() -> Witness:
    key = ec.generate_private_key(ec.SECP256R1())
    library = EventWebhook()
    public = library.convert_public_key_to_ecdsa(_spki(key.public_key()))

    def judge(body: bytes, headers: Headers) -> bool:
        prefix = "X-Twilio-Email-Event-Webhook"
        signature, stamp = headers[f"{prefix}-Signature"], headers[f"{prefix}-Timestamp"]
        return bool(library.verify_signature(body.decode(), signature, stamp, public))

    return Witness(
        secret=_pem(key), judge=judge, fixed=(b"[]\r\n", b'[{"sg_event_id":"a"},\r\n{"sg_event_id":"b"}]\r\n')
    )


def _discord() -> Witness:
    key = ed25519.Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw).hex()

    def sign(body: bytes) -> Headers:
        now = str(int(time.time()))
        return {"X-Signature-Timestamp": now, "X-Signature-Ed25519": key.sign(now.encode() + body).hex()}

    def judge(body: bytes, headers: Headers) -> bool:
        return bool(verify_key(body, headers["X-Signature-Ed25519"], headers["X-Signature-Timestamp"], public))

    return Witness(secret=_pem(key), sign=sign, judge=judge)


def _github() -> Witness:
    secret = "It's a Secret to Everybody"
    return Witness(
        secret=secret,
        sign=lambda body: {"X-Hub-Signature-256": node.ask("octokit", "sign", secret, body)},
        judge=lambda body, headers: node.ask("octokit", "judge", secret, body, headers) is True,
        own={"X-GitHub-Delivery": "d-1", "X-GitHub-Event": "push"},
        needs_node=True,
    )


def _shopify(prefix: str) -> Witness:
    """The library judges whole requests, so it is given all headers that it asks for."""
    secret = "hush é"
    named = {"Topic": "orders/create", "Shop-Domain": "a.myshopify.com", "API-Version": "2025-01"}
    own = {f"{prefix}-{name}": value for name, value in (named | {"Webhook-Id": "w-1", "Event-Id": "e-1"}).items()}
    return Witness(
        secret=secret,
        sign=lambda body: {**own, f"{prefix}-Hmac-Sha256": node.ask("shopify", "sign", secret, body)},
        judge=lambda body, headers: node.ask("shopify", "judge", secret, body, headers) is True,
        own=own,
        needs_node=True,
    )


def _spki(key: ec.EllipticCurvePublicKey) -> str:
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    return "".join(pem.splitlines()[1:-1])


def _pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> str:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()


WITNESSES: dict[str, Witness] = {
    "stripe": _stripe(),
    "standard_webhooks": _standard(),
    "svix": _svix(),
    "slack": _slack(),
    "twilio": _twilio(),
    "gocardless": _gocardless(),
    "pusher": _pusher(),
    "sendgrid": _sendgrid(),
    "discord": _discord(),
    "github": _github(),
    "shopify": _shopify("X-Shopify"),
    "shopify_events": _shopify("Shopify"),
}


class Braintree(msgspec.Struct, frozen=True):
    """Braintree's library makes whole requests of its own: forms that carry their signature, and a challenge."""

    public: str = "integration_public_key"
    private: str = "integration_private_key"

    @property
    def gateway(self) -> braintree.BraintreeGateway:
        keys = {"public_key": self.public, "private_key": self.private}
        made = braintree.Configuration(braintree.Environment.Sandbox, merchant_id="m", **keys)
        return braintree.BraintreeGateway(made)

    def notification(self) -> dict[str, str]:
        """The two form fields of a webhook, as the library makes them for tests."""
        made = self.gateway.webhook_testing.sample_notification("subscription_went_past_due", "sub_1")
        return {name: text if isinstance(text, str) else text.decode() for name, text in made.items()}

    def answer(self, challenge: str) -> str:
        """The answer to the challenge by which it tries an address out."""
        return str(self.gateway.webhook_notification.verify(challenge))


def right_mac(secret: str, body: bytes) -> str:
    """What every plain sender's documentation says: hex of HMAC-SHA256 over the raw body."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
