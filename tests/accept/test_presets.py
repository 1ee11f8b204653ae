"""Presets: the table is complete, its rows can be used as they are, and they choose safe ids."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accept.recordings import secret_of
from accept.signed import CASES, VECTORS, recorded, request, secret_for
from oncebox.accept.batch import compile_batch, split
from oncebox.accept.doors import compile_door
from oncebox.accept.handshake import HANDSHAKES, METHODS
from oncebox.accept.incoming import Incoming
from oncebox.accept.key import compile_fields
from oncebox.accept.presets import PRESETS, find_preset, preset_table, replay_warning, show_preset
from oncebox.accept.signature import parse_signature
from oncebox.config import Source, load
from oncebox.errors import ConfigError

PAYLOADS = Path(__file__).parent.parent / "cases" / "payloads"
# More careful than the recorded rule, or with a parameter that the rule leaves to the person.
DIFFERENT = {"adyen", "discord", "google_pubsub", "hubspot", "sendgrid"}


# A standard that says nothing about signatures, so no signed request of it could be recorded.
UNRECORDED = {"cloudevents"}


def keys(name: str, incoming: Incoming) -> list[str | None]:
    """The ids of a request's events by a preset's row."""
    row = PRESETS[name]
    fields = compile_fields({"id": row.id, "type": row.type, "time": row.time}, name)
    if row.batch is None:
        return [fields.read(incoming).id]
    items = split(incoming.decoded, compile_batch(row.batch), incoming.content_type)
    return [fields.read(incoming, item).id for item in items]


def valid(name: str) -> Incoming:
    """The first genuine recorded request of a sender."""
    return next(recorded(vector) for vector in VECTORS if vector["provider"] == name and vector["valid"])


def payload(number: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(next(PAYLOADS.glob(f"{number}-*.json")).read_text("utf-8"))
    return found


def test_every_recorded_sender_has_a_row_and_no_row_is_nameless() -> None:
    assert set(PRESETS) == set(CASES["presets"]) | UNRECORDED
    assert len(CASES["presets"]) == 65
    assert all(name == row.name for name, row in PRESETS.items())


@pytest.mark.parametrize("name", sorted(CASES["presets"]))
def test_a_row_signs_as_the_recorded_rule_says(name: str) -> None:
    same = parse_signature(CASES["presets"][name], name) == PRESETS[name].signature
    assert same is (name not in DIFFERENT)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_row_can_be_used_as_it_is(name: str) -> None:
    row = PRESETS[name]
    compile_fields({"id": row.id, "type": row.type, "time": row.time}, name)
    if row.batch:
        compile_batch(row.batch)
    assert row.handshake is None or row.handshake in HANDSHAKES
    assert "POST" in row.methods
    if row.handshake and row.handshake != "probe":
        assert set(METHODS.get(row.handshake, ())) <= set(row.methods)
    assert row.reply is None or 200 <= row.reply.status < 300


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_row_has_an_id_or_says_what_each_choice_means(name: str) -> None:
    row = PRESETS[name]
    assert (row.id is None) is bool(row.on_missing_id)
    if row.on_missing_id:
        assert all(f'"{choice}"' in row.on_missing_id for choice in ("reject", "body-hash", "unique"))


def test_a_row_never_chooses_a_body_hash_alone() -> None:
    hashed = {name for name, row in PRESETS.items() if "hash:body" in (row.id or ())}
    assert hashed == {"woocommerce", "pusher"}
    assert PRESETS["woocommerce"].id == ("header:X-WC-Webhook-Delivery-ID", "hash:body")
    assert PRESETS["pusher"].id == ("envelope:/time_ms", "item:index", "hash:body")


def unsigned_id(name: str) -> bool:
    """Whether neither the id nor a time takes part in what is signed."""
    row = PRESETS[name]
    assert row.signature is not None
    if row.signature.scheme == "token":
        return True
    parts = (row.id,) if isinstance(row.id, str) else row.id or ()
    headers = [part for part in parts if part.startswith("header:")]
    signed = all(f"{{{part.lower()}}}" in row.signature.message.lower() for part in headers)
    return not signed and row.signature.timestamp is None


def test_senders_that_sign_neither_id_nor_time_are_marked() -> None:
    marked = {name for name, row in PRESETS.items() if not row.signs_identity}
    # PayPal signs a checksum only, and Google's token says nothing of the body.
    assert marked == {name for name in PRESETS if unsigned_id(name)} | {"paypal", "google_pubsub"}
    assert {"github", "shopify", "woocommerce", "gitlab"} <= marked
    assert not {"stripe", "standard_webhooks", "slack", "linear", "zendesk"} & marked


def test_the_senders_that_want_another_status_for_a_wrong_signature() -> None:
    assert {name: row.bad_signature for name, row in PRESETS.items() if row.bad_signature != 401} == {"gocardless": 498}


def test_a_name_is_found_with_dash_or_underscore() -> None:
    assert find_preset("standard-webhooks") is find_preset("standard_webhooks") is PRESETS["standard_webhooks"]


@pytest.mark.parametrize(
    ("name", "words"), [("strip", '"stripe"'), ("Git-Hub", '"github"'), ("zzz", "known are adyen")]
)
def test_an_unknown_name_is_told_with_what_was_meant(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match="preset") as told:
        find_preset(name)
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("stripe", ["evt_1OxTest0000000000000001"]),
        ("github", ["6a2b1f0e-8f0b-4d54-9c55-0a4f0f6b1c11"]),
        ("shopify", ['["98880550-7158-44d4-b7cd-2c97c8a091b5","orders/create"]']),
        ("hubspot", ['["25","1234567890123456789","1746093599000"]']),
        ("zoom", ['["meeting.started","1746093599321","94288349012"]']),
        ("adyen", ['["7914073381342284","AUTHORISATION","true"]']),
        ("standard_webhooks", ["msg_loFOjxBNrRLzqYUf"]),
        ("telegram", ["10000"]),
        ("line", ["01FZ74A0TDDPYRVKNK77XKC3ZR"]),
        ("aws_sns", ["22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324"]),
        ("google_pubsub", ["2070443601311540"]),
        ("intercom", ["notif_11111111-23ba-11e4-9464-79b01267cc2e"]),
        ("netlify", ['["5c1","ready"]']),
        ("typeform", ["LtWXD3crgy1"]),
        ("vercel", ["evt_1"]),
        ("paypal", ["WH-9UG43882HX7271132-6E0871324L7949614"]),
    ],
)
def test_recorded_requests_give_the_sender_s_id(name: str, wanted: list[str]) -> None:
    assert keys(name, valid(name)) == wanted


def test_two_orders_in_one_second_of_a_shop_are_two_events() -> None:
    case = payload("29")
    first = request(case["body"].encode(), case["headers"])
    second = request(case["second"]["body"].encode(), case["headers"] | case["second"]["headers"])
    assert keys("woocommerce", first) != keys("woocommerce", second)
    assert keys("woocommerce", first) == keys("woocommerce", first)


def test_changes_that_share_an_event_id_are_told_apart() -> None:
    case = payload("11")
    found = keys("hubspot", request(case["body"].encode(), case["headers"]))
    assert len(set(found)) == len(found) == 3


def test_an_item_that_comes_twice_in_a_batch_has_one_id() -> None:
    case = payload("09")
    body = base64.b64decode(case["body_base64"]) if "body_base64" in case else case["body"].encode()
    found = keys("sendgrid", request(body, case["headers"]))
    assert (len(found), len(set(found))) == (4, 3)


README = Path(__file__).parent.parent.parent / "README.md"


def test_the_readme_holds_the_table_of_today() -> None:
    text = README.read_text("utf-8")
    table = text.partition("<!-- presets -->\n")[2].partition("<!-- /presets -->")[0]
    assert table == preset_table(), "write preset_table() between the markers"
    assert len(table.splitlines()) == len(PRESETS) + 2


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_row_as_toml_is_the_same_source_as_its_preset(name: str, tmp_path: Path) -> None:
    shown = show_preset(name.replace("_", "-")).replace('# on_missing_id = "unique" ', 'on_missing_id = "unique" #')
    shown = shown.replace(*FILLED.get(name, ("", "")))
    path = tmp_path / "litestar.toml"
    path.write_text(shown)
    variables = {f"{name.upper()}_SECRET": secret_as_needed(name), f"{name.upper()}_VERIFY_TOKEN": "t"}
    source = load(path, environ=variables, overrides={}).sources[name]
    assert source.preset is None
    written = compile_door(name, source, 1)
    signature = source.signature if name in FILLED else None
    by_name = compile_door(name, msgspec.structs.replace(bare(source), preset=name, signature=signature), 1)
    for key in ("events", "greeting", "batch", "encoding", "reply", "hidden", "hidden_query", "token"):
        assert getattr(written, key) == getattr(by_name, key), key
    row = PRESETS[name]
    rule = parse_signature(source.signature or {}, name)
    assert name in FILLED or rule == row.signature
    assert (source.id, source.type, source.time) == (row.id, row.type, row.time)
    assert row.bad_signature == 401 or str(row.bad_signature) in shown


# What only the operator knows, where a row cannot be used without it.
FILLED = {
    "paypal": ('scheme = "pubkey"', 'scheme = "pubkey", configured_id = "W-1"'),
    "google_pubsub": ("claims = {", 'claims = { match = { email = "push@example.com" },'),
}


def secret_as_needed(name: str) -> str:
    """A secret, key or certificate that this sender could have."""
    found = next((secret_of(vector) for vector in VECTORS if vector["provider"] == name), None)
    signature = PRESETS[name].signature
    assert signature is not None
    return found or secret_for(signature, "x")


def bare(source: Source) -> Source:
    """Only what no preset knows."""
    return Source(secrets=source.secrets, verify_token=source.verify_token, on_missing_id=source.on_missing_id)


def test_captured_requests_are_warned_of_where_nothing_prevents_their_use() -> None:
    warned = {name: replay_warning(row) for name, row in PRESETS.items()}
    assert {name for name, words in warned.items() if words} == {n for n, r in PRESETS.items() if not r.signs_identity}
    assert "under a new id" in (warned["github"] or "")
    assert "has the secret" in (warned["gitlab"] or "")
    assert warned["stripe"] is None
    assert "Beware" in show_preset("github")
    assert "Beware" not in show_preset("stripe")
