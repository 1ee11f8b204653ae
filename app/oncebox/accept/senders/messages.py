"""Messages: senders of mail, chat, calls, forms and meetings."""

from __future__ import annotations

from oncebox.accept.preset import OK, TIMELESS, Preset, mac, mac_list, no_id, token, unlimited, within
from oncebox.accept.spec import Claims, Sig, SignatureSpec, Timestamp
from oncebox.model import Reply

_TWIML = Reply(200, "text/xml; charset=utf-8", b'<?xml version="1.0" encoding="UTF-8"?><Response/>')

_FIRST_TRY = (
    "Mailgun repeats for eight hours and is said to send the time of the first try with each: so that an outage of "
    'more than five minutes loses nothing, set signature = { tolerance = "9h" }.'
)

MESSAGES = (
    Preset(
        name="slack",
        signature=mac(
            "X-Slack-Signature",
            "v0:{ts}:{body}",
            prefix="v0=",
            timestamp=within("header:X-Slack-Request-Timestamp"),
        ),
        id="body:/event_id",
        type="body:/event/type",
        time="body:/event_time",
        handshake="slack",
        reply=OK,
        note='For the Events API. For buttons and dialogs set id = "form:payload json:/trigger_id", for slash commands '
        'id = "form:trigger_id".',
    ),
    Preset(
        name="discord",
        signature=SignatureSpec(
            "pubkey",
            Sig("header:X-Signature-Ed25519"),
            message="{ts}{body}",
            timestamp=unlimited("header:X-Signature-Timestamp"),
            algo="ed25519",
            pub="ed25519-hex",
        ),
        id="body:/id",
        type="body:/type",
        time="header:X-Signature-Timestamp",
        handshake="discord",
        note="For interactions; the handler answers them through their callback. Webhook events have no id: set id = "
        '["body:/event/type", "body:/event/timestamp"], type = "body:/event/type" and reply = { status = 204 }.',
    ),
    Preset(
        name="telegram",
        signature=token("X-Telegram-Bot-Api-Secret-Token"),
        id="body:/update_id",
        reply=OK,
        signs_identity=False,
    ),
    Preset(
        name="line",
        signature=mac("X-Line-Signature", encoding="base64"),
        id="body:/webhookEventId",
        type="body:/type",
        time="body:/timestamp",
        batch="array:/events",
        reply=OK,
        note="A redelivery has the same id in another body, signed anew: conflicts are expected and harmless.",
    ),
    Preset(
        name="meta",
        signature=mac("X-Hub-Signature-256", prefix="sha256="),
        type="body:/object",
        handshake="meta",
        reply=OK,
        methods=("POST", "GET"),
        on_missing_id=no_id(
            "One post may hold many messages, each with its own id deep in it, and has none itself.",
            equal="a repeat with the same entries; one that comes in other company is another event",
        ),
        note='Meta tries the URL out with a token of your choice: verify_token = "env:META_VERIFY_TOKEN", which is '
        f"not the app secret. {TIMELESS}",
    ),
    Preset(
        name="twilio",
        signature=SignatureSpec(
            "hmac",
            Sig("header:X-Twilio-Signature", "base64"),
            hash="sha1",
            message="{url}{form_sorted}",
            url_variants=True,
            body_hash_query="bodySHA256",
            hash_from="header:X-Twilio-Webhooks-Signature-Settings",
        ),
        id="header:I-Twilio-Idempotency-Token",
        type="form:MessageStatus",
        reply=_TWIML,
        signs_identity=False,
        note='Without that header set id = ["form:MessageSid", "form:MessageStatus"]: a MessageSid alone repeats for '
        'every status. Event Streams: batch = "array", id = "body:/id", type = "body:/type".',
    ),
    Preset(
        name="messagebird",
        signature=SignatureSpec(
            "jws",
            Sig("header:MessageBird-Signature-JWT"),
            algs=("HS256", "HS384", "HS512"),
            claims=Claims(
                iss=("MessageBird",),
                body_sha256_hex="payload_hash",
                url_sha256_hex="url_hash",
                exp=True,
                nbf=True,
            ),
            leeway=1,
        ),
        on_missing_id=no_id(
            "Its id stands inside the signed token of a header, and whether a repeat keeps it is not known.",
            equal="as far as the body tells two events apart",
        ),
    ),
    Preset(
        name="sendgrid",
        signature=SignatureSpec(
            "pubkey",
            Sig("header:X-Twilio-Email-Event-Webhook-Signature", "base64"),
            message="{ts}{body}",
            timestamp=unlimited("header:X-Twilio-Email-Event-Webhook-Timestamp"),
            algo="ecdsa-p256-sha256",
            pub="spki-base64",
        ),
        id="body:/sg_event_id",
        type="body:/event",
        time="body:/timestamp",
        batch="array",
    ),
    Preset(
        name="mailgun",
        signature=mac(
            "json:signature.signature",
            "{json:signature.timestamp}{json:signature.token}",
            timestamp=within("json:signature.timestamp"),
        ),
        id="body:/event-data/id",
        type="body:/event-data/event",
        time="body:/event-data/timestamp",
        reply=OK,
        note="Only a time and a token are signed, not the event: as long as the tolerance another event could be put "
        f"beside them. {_FIRST_TRY}",
    ),
    Preset(
        name="mailgun_inbound",
        signature=mac(
            "form:signature",
            "{form:timestamp}{form:token}",
            timestamp=within("form:timestamp"),
        ),
        time="form:timestamp",
        reply=OK,
        on_missing_id=no_id(
            "No field of an inbound mail is promised to be an id; form:Message-Id names the mail, not this delivery.",
            equal="only if a repeat keeps its token, its time and its multipart boundary",
        ),
        note=f"Only a time and a token are signed, not the mail. {_FIRST_TRY}",
    ),
    Preset(
        name="postmark",
        signature=token("basic"),
        type="body:/RecordType",
        reply=OK,
        on_missing_id=no_id(
            'Each kind of record has its id elsewhere: bounces and spam complaints "body:/ID", inbound mail '
            '"body:/MessageID", the others none alone.',
            equal="which holds where the record carries its time",
        ),
        signs_identity=False,
        note='The secret is written as "user:password", as in the URL. Postmark takes a 403 as the wish to stop.',
    ),
    Preset(
        name="mailchimp",
        signature=token("query:secret"),
        type="form:type",
        time="form:fired_at",
        handshake="probe",
        reply=OK,
        methods=("POST", "GET", "HEAD"),
        on_missing_id=no_id(
            "The form says what happened and when, to the second, and has no id.",
            equal="two equal changes within one second would be absorbed",
        ),
        signs_identity=False,
    ),
    Preset(
        name="mandrill",
        signature=mac("X-Mandrill-Signature", "{url}{form_sorted}", hash="sha1", encoding="base64"),
        id=("body:/_id", "body:/event", "body:/ts"),
        type="body:/event",
        time="body:/ts",
        batch="form:mandrill_events",
        handshake="probe",
        reply=OK,
        methods=("POST", "GET", "HEAD"),
        note="The URL is signed exactly as it was entered at Mandrill: set url to the same text. Inbound mail and "
        'changes of lists have no _id: give them a source of their own with on_missing_id = "body-hash". Clicks on '
        'several links of a mail in one second share the id; with "hash:body" as its fourth part they do not.',
    ),
    Preset(
        name="intercom",
        signature=mac("X-Hub-Signature", hash="sha1", prefix="sha1="),
        id="body:/id",
        type="body:/topic",
        time="body:/created_at",
        handshake="probe",
        methods=("POST", "HEAD"),
    ),
    Preset(
        name="typeform",
        signature=mac("Typeform-Signature", encoding="base64", prefix="sha256="),
        id="body:/event_id",
        type="body:/event_type",
    ),
    Preset(
        name="calendly",
        signature=mac_list("Calendly-Webhook-Signature", "v1", "{ts}.{body}", stamp=within("sig:t", 180)),
        id=("body:/event", "body:/payload/uri", "body:/created_at"),
        type="body:/event",
        time="body:/created_at",
    ),
    Preset(
        name="zoom",
        signature=mac(
            "x-zm-signature",
            "v0:{ts}:{body}",
            prefix="v0=",
            timestamp=within("header:x-zm-request-timestamp"),
        ),
        id=("body:/event", "body:/event_ts", "body:/payload/object/id"),
        type="body:/event",
        time="body:/event_ts",
        handshake="zoom",
        reply=OK,
        note="Events whose payload has no object with an id need another id, and Zoom never repeats what got a 4xx. "
        "Participants who come or go in the same millisecond share the id: for such events make "
        '"body:/payload/object/participant/user_id" its fourth part, in a source of their own.',
    ),
    Preset(
        name="hubspot",
        signature=SignatureSpec(
            "hmac",
            Sig("header:X-HubSpot-Signature-v3", "base64"),
            message="{method}{url}{body}{ts}",
            timestamp=Timestamp("header:X-HubSpot-Request-Timestamp", "ms"),
            url_unescape=":/?@!$'()*,;",
        ),
        id=("body:/subscriptionId", "body:/eventId", "body:/occurredAt"),
        type="body:/subscriptionType",
        time="body:/occurredAt",
        batch="array",
        note="attemptNumber changes on a retry: conflicts are expected and harmless.",
    ),
)
