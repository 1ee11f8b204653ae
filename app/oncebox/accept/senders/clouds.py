"""Clouds: senders of platforms, identities and files, and the Standard Webhooks family."""

from __future__ import annotations

from oncebox.accept.preset import OK, TIMELESS, Preset, mac, mac_list, no_id, standard, token, within
from oncebox.accept.spec import CertUrl, Claims, Sig, SignatureSpec

CLOUDS = (
    Preset(
        name="standard_webhooks",
        signature=standard("webhook"),
        id="header:webhook-id",
        type="body:/type",
        time="header:webhook-timestamp",
    ),
    Preset(
        name="svix",
        signature=standard("svix"),
        id="header:svix-id",
        type="body:/type",
        time="header:svix-timestamp",
    ),
    Preset(
        name="openai",
        signature=standard("webhook"),
        id="header:webhook-id",
        type="body:/type",
        time="header:webhook-timestamp",
    ),
    Preset(
        name="supabase_auth_hook",
        signature=standard("webhook"),
        id="header:webhook-id",
        time="header:webhook-timestamp",
        note='The secret may be pasted as it is shown, with "v1,whsec_" in front.',
    ),
    Preset(
        name="clerk",
        signature=standard("svix"),
        id="header:svix-id",
        type="body:/type",
        time="header:svix-timestamp",
    ),
    Preset(
        name="resend",
        signature=standard("svix"),
        id="header:svix-id",
        type="body:/type",
        time="header:svix-timestamp",
    ),
    Preset(
        name="cloudevents",
        signature=token("Authorization", "Bearer "),
        id=("cloudevent:source", "cloudevent:id"),
        type="cloudevent:type",
        time="cloudevent:time",
        batch="cloudevents",
        handshake="cloudevents",
        methods=("POST", "OPTIONS"),
        signs_identity=False,
        note="Binary, structured and batch mode alike. CloudEvents say nothing about signatures: a sender that signs "
        "needs a signature of its own here, one that proves nothing unsigned = true.",
    ),
    Preset(
        name="workos",
        signature=mac_list("WorkOS-Signature", "v1", "{ts}.{body}", stamp=within("sig:t", 180, "ms")),
        id="body:/id",
        type="body:/event",
        time="body:/created_at",
    ),
    Preset(
        name="okta",
        signature=token("Authorization"),
        id="body:/uuid",
        type="body:/eventType",
        time="body:/published",
        batch="array:/data/events",
        handshake="okta",
        reply=OK,
        methods=("POST", "GET"),
        signs_identity=False,
    ),
    Preset(
        name="dropbox",
        signature=mac("X-Dropbox-Signature"),
        handshake="dropbox",
        reply=OK,
        methods=("POST", "GET"),
        on_missing_id=no_id(
            "A request says only that something changed in some accounts.",
            equal="every later change of the same accounts has the same bytes and would be lost, so never without a "
            "short window such as body-hash:5s",
        ),
        note=TIMELESS,
    ),
    Preset(
        name="microsoft_graph",
        signature=token("json-every:value[].clientState"),
        type="body:/changeType",
        batch="array:/value",
        handshake="graph",
        on_missing_id=no_id(
            "Not every notification has an id.",
            equal="two changes of one resource may have the same bytes and one would be lost",
        ),
        signs_identity=False,
        note="Tokens in validationTokens of rich notifications are not looked at.",
    ),
    Preset(
        name="aws_sns",
        signature=SignatureSpec(
            "pubkey",
            Sig("json:Signature", "base64"),
            message="{sns}",
            algo="rsa-by-json",
            pub="cert-url",
            cert_url=CertUrl("json:SigningCertURL", r"sns\.[a-zA-Z0-9-]{3,}\.amazonaws\.com(\.cn)?", r"/.*\.pem"),
        ),
        id="body:/MessageId",
        type="body:/Type",
        time="body:/Timestamp",
        handshake="sns",
        note="The certificate is configured as the secret and nothing is fetched. A SubscriptionConfirmation is stored "
        "as an event of that type: open its SubscribeURL to confirm.",
    ),
    Preset(
        name="google_pubsub",
        signature=SignatureSpec(
            "jws",
            Sig("header:Authorization", prefix="Bearer "),
            algs=("RS256",),
            claims=Claims(
                iss=("https://accounts.google.com", "accounts.google.com"),
                aud="{url}",
                exp=True,
                must_match=("email",),
            ),
        ),
        id="body:/message/messageId",
        time="body:/message/publishTime",
        reply=OK,
        signs_identity=False,
        note="The token proves who sends, not what. Set signature.claims.match.email to the service account of the "
        "subscription; the secret is Google's JSON Web Key Set.",
    ),
    Preset(
        name="netlify",
        signature=SignatureSpec(
            "jws",
            Sig("header:X-Webhook-Signature"),
            algs=("HS256",),
            claims=Claims(iss=("netlify",), body_sha256_hex="sha256"),
        ),
        id=("body:/id", "body:/state"),
        type="header:X-Netlify-Event",
    ),
)
