"""Shops: senders that sell, charge and pay."""

from __future__ import annotations

from oncebox.accept.preset import OK, TIMELESS, Preset, mac, mac_list, no_id, standard, within
from oncebox.accept.spec import CertUrl, Claims, Sig, SignatureSpec
from oncebox.model import Reply

_ACCEPTED = Reply(200, "text/plain; charset=utf-8", b"[accepted]")
_ADYEN_ITEM = "NotificationRequestItem"
_ADYEN_FIELDS = (
    "pspReference",
    "originalReference",
    "merchantAccountCode",
    "merchantReference",
    "amount.value",
    "amount.currency",
    "eventCode",
    "success",
)

SHOPS = (
    Preset(
        name="stripe",
        signature=mac_list("Stripe-Signature", "v1", "{ts}.{body}", stamp=within("sig:t")),
        id="body:/id",
        type="body:/type",
        time="body:/created",
    ),
    Preset(
        name="shopify",
        signature=mac("X-Shopify-Hmac-Sha256", encoding="base64"),
        id=("header:X-Shopify-Event-Id", "header:X-Shopify-Topic"),
        type="header:X-Shopify-Topic",
        time="header:X-Shopify-Triggered-At",
        signs_identity=False,
        note="Several subscriptions that hear one event count once for each topic. For one event for each "
        'subscription set id = "header:X-Shopify-Webhook-Id". Webhooks made in a shop\'s admin have another secret.',
    ),
    Preset(
        name="shopify_events",
        signature=mac("Shopify-Hmac-Sha256", encoding="base64"),
        id="header:Shopify-Webhook-Id",
        type="header:Shopify-Topic",
        signs_identity=False,
    ),
    Preset(
        name="woocommerce",
        signature=mac("X-WC-Webhook-Signature", encoding="base64"),
        id=("header:X-WC-Webhook-Delivery-ID", "hash:body"),
        type="header:X-WC-Webhook-Topic",
        handshake="woocommerce",
        signs_identity=False,
        note="Two deliveries in one second share their delivery id, so the body is part of the id. It never tries "
        "again, and five failures in a row switch it off.",
    ),
    Preset(
        name="bigcommerce",
        signature=standard("webhook", "utf8"),
        id="header:webhook-id",
        type="body:/scope",
        time="header:webhook-timestamp",
        reply=OK,
    ),
    Preset(
        name="square",
        signature=mac("x-square-hmacsha256-signature", "{url}{body}", encoding="base64"),
        id="body:/event_id",
        type="body:/type",
        time="body:/created_at",
        note="The URL is signed exactly as it is written in Square's console: set url to the same text.",
    ),
    Preset(
        name="paypal",
        signature=SignatureSpec(
            "pubkey",
            Sig("header:PAYPAL-TRANSMISSION-SIG", "base64"),
            message="{header:PAYPAL-TRANSMISSION-ID}|{header:PAYPAL-TRANSMISSION-TIME}|{configured_id}|{crc32}",
            algo="rsa-sha256",
            pub="cert-url",
            cert_url=CertUrl(
                "header:PAYPAL-CERT-URL", r"api(-m)?(\.sandbox)?\.paypal\.com", "/v1/notifications/certs/.+"
            ),
        ),
        id="body:/id",
        type="body:/event_type",
        time="body:/create_time",
        signs_identity=False,
        note="Of the body only a checksum is signed, and another body can be made to fit it. The certificate is "
        "configured as the secret; signature.configured_id is the id PayPal gave the webhook.",
    ),
    Preset(
        name="paddle",
        signature=mac_list("Paddle-Signature", "h1", "{ts}:{body}", delim=";", stamp=within("sig:ts", 5)),
        id="body:/event_id",
        type="body:/event_type",
        time="body:/occurred_at",
        reply=OK,
        note='Paddle\'s own limit of 5 s is kept; with a slow network set signature = { tolerance = "1m" }.',
    ),
    Preset(
        name="adyen",
        signature=SignatureSpec(
            "hmac",
            Sig(f"json:{_ADYEN_ITEM}.additionalData.hmacSignature", "base64"),
            key="hex",
            message=":".join(f"{{json?:{_ADYEN_ITEM}.{field}}}" for field in _ADYEN_FIELDS),
            each="/notificationItems",
        ),
        id=tuple(f"body:/{_ADYEN_ITEM}/{field}" for field in ("pspReference", "eventCode", "success")),
        type=f"body:/{_ADYEN_ITEM}/eventCode",
        time=f"body:/{_ADYEN_ITEM}/eventDate",
        batch="array:/notificationItems",
        reply=_ACCEPTED,
        note="Eight fields of each item are signed, the rest of the body is not.",
    ),
    Preset(
        name="adyen_platform",
        signature=mac("HmacSignature", encoding="base64", key="hex"),
        id=("body:/data/id", "body:/type"),
        type="body:/type",
        reply=_ACCEPTED,
        note="Of several events of one type about one object the later ones show as conflicts: then choose another id.",
    ),
    Preset(
        name="braintree",
        signature=SignatureSpec(
            "hmac",
            Sig("form:bt_signature", syntax="pairs"),
            hash="sha1",
            key="sha1(second)",
            message="{form:bt_payload}",
        ),
        handshake="braintree",
        methods=("POST", "GET"),
        on_missing_id=no_id(
            "What happened stands in bt_payload, which is XML in base64 and has no id.",
            equal="its time of making is in it, so equal bodies are most likely a repeat",
        ),
        note=f'The secret is written as "public key|private key". {TIMELESS}',
    ),
    Preset(
        name="gocardless",
        signature=mac("Webhook-Signature"),
        id="body:/id",
        type="body:/resource_type",
        time="body:/created_at",
        batch="array:/events",
        bad_signature=498,
    ),
    Preset(
        name="plaid",
        signature=SignatureSpec(
            "jws",
            Sig("header:Plaid-Verification"),
            algs=("ES256",),
            claims=Claims(body_sha256_hex="request_body_sha256", iat_max_age=300),
        ),
        type="body:/webhook_code",
        reply=OK,
        on_missing_id=no_id(
            "The body says what changed and in which item, and has no id.",
            equal="the same change twice has the same bytes too and would be absorbed; a window such as body-hash:1h "
            "narrows that",
        ),
        note="The secret is the key of Plaid's verification endpoint, as PEM or as a JSON Web Key (Set).",
    ),
    Preset(
        name="coinbase_commerce",
        signature=mac("X-CC-Webhook-Signature"),
        id="body:/event/id",
        type="body:/event/type",
        time="body:/event/created_at",
    ),
    Preset(
        name="docusign",
        signature=mac("header-numbered:X-DocuSign-Signature-", encoding="base64"),
        id=("body:/data/envelopeId", "body:/event", "body:/generatedDateTime"),
        type="body:/event",
        time="body:/generatedDateTime",
        note="For the JSON form of Connect. retryCount in the body may change between tries: never hash the body.",
    ),
)
