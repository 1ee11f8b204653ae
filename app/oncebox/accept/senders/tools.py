"""Tools: senders that develop, build, watch and plan."""

from __future__ import annotations

from oncebox.accept.preset import OK, TIMELESS, Preset, mac, mac_list, no_id, standard, token, within

_ALERTS = no_id(
    "An alert has no id of its own, and it is sent again on purpose as long as it lasts.",
    equal="so a reminder with the same bytes is absorbed; a window such as body-hash:5m keeps later ones",
)
_BUILDS = no_id(
    "No field names an event for all kinds of events: builds and jobs carry their ids in different places.",
    equal="which holds for a repeated delivery as far as is known",
)

TOOLS = (
    Preset(
        name="github",
        signature=mac("X-Hub-Signature-256", prefix="sha256="),
        id="header:X-GitHub-Delivery",
        type="header:X-GitHub-Event",
        signs_identity=False,
        note="It never tries again by itself: what is refused comes back only if somebody presses Redeliver.",
    ),
    Preset(
        name="gitlab",
        signature=token("X-Gitlab-Token"),
        id="header:Idempotency-Key",
        type="header:X-Gitlab-Event",
        reply=OK,
        signs_identity=False,
        note="With the newer signing token use gitlab_signed, which proves the body too.",
    ),
    Preset(
        name="gitlab_signed",
        signature=standard("webhook"),
        id="header:webhook-id",
        type="header:X-Gitlab-Event",
        time="header:webhook-timestamp",
        reply=OK,
    ),
    Preset(
        name="bitbucket",
        signature=mac("X-Hub-Signature", prefix="sha256="),
        id="header:X-Request-UUID",
        type="header:X-Event-Key",
        signs_identity=False,
    ),
    Preset(
        name="jira",
        signature=mac("X-Hub-Signature", prefix="sha256="),
        id="header:X-Atlassian-Webhook-Identifier",
        type="body:/webhookEvent",
        time="body:/timestamp",
        signs_identity=False,
    ),
    Preset(
        name="linear",
        signature=mac("Linear-Signature", timestamp=within("json:webhookTimestamp", 60, "ms")),
        id="header:Linear-Delivery",
        type="header:Linear-Event",
        time="body:/webhookTimestamp",
        reply=OK,
    ),
    Preset(
        name="notion",
        signature=mac("X-Notion-Signature", prefix="sha256="),
        id="body:/id",
        type="body:/type",
        time="body:/timestamp",
        note="The first request brings verification_token, unsigned: it is refused and kept. Look at it with oncebox "
        "refused, paste the token into Notion and make it the secret.",
    ),
    Preset(
        name="sentry",
        signature=mac("Sentry-Hook-Signature"),
        id="header:Request-ID",
        type="header:Sentry-Hook-Resource",
        time="header:Sentry-Hook-Timestamp",
        signs_identity=False,
    ),
    Preset(
        name="pagerduty",
        signature=mac_list("X-PagerDuty-Signature", "v1"),
        id="body:/event/id",
        type="body:/event/event_type",
        time="body:/event/occurred_at",
    ),
    Preset(
        name="circleci",
        signature=mac_list("circleci-signature", "v1"),
        id="body:/id",
        type="body:/type",
        time="body:/happened_at",
    ),
    Preset(
        name="buildkite",
        signature=mac_list("X-Buildkite-Signature", "signature", "{ts}.{body}", stamp=within("sig:timestamp")),
        type="header:X-Buildkite-Event",
        on_missing_id=_BUILDS,
    ),
    Preset(
        name="buildkite_token",
        signature=token("X-Buildkite-Token"),
        type="header:X-Buildkite-Event",
        on_missing_id=_BUILDS,
        signs_identity=False,
    ),
    Preset(
        name="vercel",
        signature=mac("X-Vercel-Signature", hash="sha1"),
        id="body:/id",
        type="body:/type",
        time="body:/createdAt",
    ),
    Preset(
        name="grafana",
        signature=mac("X-Grafana-Alerting-Signature"),
        type="body:/status",
        on_missing_id=_ALERTS,
        note=f"Grafana signs a time only when its settings name a header for it: then use grafana_ts. {TIMELESS}",
    ),
    Preset(
        name="grafana_ts",
        signature=mac(
            "X-Grafana-Alerting-Signature",
            "{ts}:{body}",
            timestamp=within("header:X-Grafana-Alerting-Timestamp"),
        ),
        type="body:/status",
        time="header:X-Grafana-Alerting-Timestamp",
        on_missing_id=_ALERTS,
    ),
    Preset(
        name="alertmanager",
        signature=token("Authorization", "Bearer "),
        type="body:/status",
        on_missing_id=_ALERTS,
        signs_identity=False,
    ),
    Preset(
        name="segment",
        signature=mac("X-Signature", hash="sha1"),
        id="body:/messageId",
        type="body:/type",
        time="body:/timestamp",
    ),
    Preset(
        name="pusher",
        signature=mac("X-Pusher-Signature", timestamp=within("json:time_ms", 300, "ms")),
        id=("envelope:/time_ms", "item:index", "hash:body"),
        type="body:/name",
        time="envelope:/time_ms",
        batch="array:/events",
        note="Its events have no id: their place in the post, its time and their own bytes make one together.",
    ),
    Preset(
        name="zendesk",
        signature=mac(
            "X-Zendesk-Webhook-Signature",
            "{ts}{body}",
            encoding="base64",
            timestamp=within("header:X-Zendesk-Webhook-Signature-Timestamp", 300, "iso"),
        ),
        id="header:X-Zendesk-Webhook-Invocation-Id",
        type="body:/type",
        time="header:X-Zendesk-Webhook-Signature-Timestamp",
    ),
)
