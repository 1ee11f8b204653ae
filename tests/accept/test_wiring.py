"""What a preset promises, through the whole front half: modes, batches in forms, URLs, credentials, handshakes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.conftest import OpenInbox
from accept.requests import NOW, posted
from oncebox.accept.doors import compile_door, compile_doors
from oncebox.accept.form import MAX_FIELDS, form_pairs
from oncebox.accept.inbox import Inbox
from oncebox.config import MissingId, Server, Settings, Source
from oncebox.secret import Secret
from oncebox.store.sqlite import open_store

pytestmark = pytest.mark.anyio
KEY = Secret("env:KEY", "s3cret")
FORM = ("Content-Type", "application/x-www-form-urlencoded")
SECONDS = NOW // 1_000_000


def preset(name: str, **more: Any) -> Source:
    return Source(preset=name, secrets=(KEY,), **more)


def mac(message: bytes, hash: str = "sha256") -> bytes:
    return hmac.new(KEY.value.encode(), message, hash).digest()


class TestCloudEvents:
    BEARER = ("Authorization", "Bearer s3cret")

    async def test_one_source_takes_all_three_modes_and_they_are_one_event(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"ce": preset("cloudevents")})
        event = {"specversion": "1.0", "id": "a/b é", "source": "/shop", "type": "order", "data": {"id": "inner"}}
        structured = json.dumps(event)
        kinds = "application/cloudevents+json", "application/cloudevents-batch+json; charset=utf-8"
        answer = await sender.send("ce", structured, ("Content-Type", kinds[0]), self.BEARER)
        assert (answer.status, json.loads(answer.body)["id"]) == (202, '["/shop","a/b é"]')
        answer = await sender.send("ce", f"[{structured}]", ("Content-Type", kinds[1]), self.BEARER)
        assert (answer.status, dict(answer.headers)) == (202, {"idempotent-replayed": "true"})
        attributes = (
            ("ce-id", "a/b %C3%A9"),
            ("ce-source", "/shop"),
            ("ce-type", '"ord\\er"'),
            ("ce-specversion", "1.0"),
        )
        answer = await sender.send("ce", '{"id": "inner"}', *attributes, self.BEARER)
        assert dict(answer.headers) == {"idempotent-replayed": "true"}
        other = [(name, value if name != "ce-id" else "2") for name, value in attributes]
        await sender.send("ce", '{"id": "inner"}', *other, ("Content-Type", "application/json"), self.BEARER)
        rows = await sender.rows("select id, type from events order by seq")
        assert rows == [('["/shop","a/b é"]', "order"), ('["/shop","2"]', "order")]

    async def test_a_header_names_no_structured_event(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"ce": preset("cloudevents")})
        structured = '{"id": "1", "source": "/s", "type": "t"}'
        kind = ("Content-Type", "application/cloudevents+json")
        for number in range(3):
            await sender.send("ce", structured, kind, ("ce-id", str(number)), self.BEARER)
        assert await sender.rows("select id from events") == [('["/s","1"]',)]

    async def test_an_empty_batch_is_taken_and_a_missing_id_is_named(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"ce": preset("cloudevents")})
        batch = ("Content-Type", "application/cloudevents-batch+json")
        assert (await sender.send("ce", "[]", batch, self.BEARER)).status == 202
        problem = await sender.refused("ce", '[{"source": "/s"}]', batch, self.BEARER)
        assert (problem["slug"], problem["index"]) == ("bad-id", 0)
        assert "CloudEvents attribute id" in problem["detail"]
        assert "attribute source" in (await sender.refused("ce", "x", self.BEARER))["detail"]
        assert (await sender.refused("ce", "x"))["slug"] == "bad-signature"

    async def test_its_options_request_is_answered_with_its_headers(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"ce": preset("cloudevents")})
        answer = await sender.send("ce", "", ("WebHook-Request-Origin", "shop.example"), method="OPTIONS")
        assert answer.status == 200
        assert dict(answer.headers)["webhook-allowed-origin"] == "shop.example"


class TestForms:
    def signed(self, fields: dict[str, str], url: str = "https://hooks.example.com/in/md") -> tuple[str, str]:
        message = url + "".join(name + value for name, value in sorted(fields.items()))
        return "X-Mandrill-Signature", base64.b64encode(mac(message.encode(), "sha1")).decode()

    async def test_each_event_of_a_form_field_is_one(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"md": preset("mandrill")})
        items = [{"event": "open", "_id": "m1", "ts": 1}, {"event": "click", "_id": "m1", "ts": 1, "url": "é & +"}]
        text = json.dumps(items, ensure_ascii=False, indent=1)
        fields = {"mandrill_events": text}
        answer = await sender.send("md", urlencode(fields), FORM, self.signed(fields))
        assert (answer.status, answer.body) == (200, b"")
        rows = await sender.rows(
            "select e.id, e.type, p.body, p.content_type from events e join payloads p on p.seq = e.seq order by e.seq"
        )
        assert [row[:2] for row in rows] == [('["m1","open","1"]', "open"), ('["m1","click","1"]', "click")]
        assert all(body.decode() in text for _, _, body, _ in rows)
        assert {kind for *_, kind in rows} == {"application/json"}
        one = {"mandrill_events": json.dumps(items[1:])}
        again = await sender.send("md", urlencode(one), FORM, self.signed(one))
        assert dict(again.headers) == {"idempotent-replayed": "true"}

    async def test_an_empty_list_is_taken_and_no_list_is_refused(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"md": preset("mandrill")})
        fields = {"mandrill_events": "[]"}
        assert (await sender.send("md", urlencode(fields), FORM, self.signed(fields))).status == 200
        for fields in ({"mandrill_events": "{}"}, {"mandrill_events": "[1"}, {"other": "[]"}):
            problem = await sender.refused("md", urlencode(fields), FORM, self.signed(fields))
            assert (problem["slug"], problem["status"]) == ("bad-body", 400)
            assert "mandrill_events" in problem["detail"]

    @pytest.mark.parametrize("head", ["", "Content-Type: text/plain\r\n"])
    async def test_a_form_has_a_bounded_number_of_parts(self, head: str) -> None:
        def parts(count: int) -> bytes:
            part = f'--x\r\n{head}Content-Disposition: form-data; name="a"\r\n\r\n1\r\n'
            return (part * count + "--x--\r\n").encode()

        kind = "multipart/form-data; boundary=x"
        assert len(form_pairs(kind, parts(MAX_FIELDS))) == MAX_FIELDS
        began = time.process_time()
        with pytest.raises(ValueError, match="more than"):
            form_pairs(kind, parts(50_000))
        with pytest.raises(ValueError, match="fields"):
            form_pairs(FORM[1], b"a=1&" * 50_000)
        assert time.process_time() - began < 0.05

    async def test_too_many_parts_are_refused_as_unproved(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"mg": preset("mailgun_inbound", on_missing_id=MissingId("unique"))})
        body = '--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * (MAX_FIELDS + 1) + "--x--\r\n"
        problem = await sender.refused("mg", body, ("Content-Type", "multipart/form-data; boundary=x"))
        assert (problem["status"], problem["slug"]) == (401, "bad-signature")


class TestEnvelopes:
    async def test_events_without_an_id_are_told_apart_by_time_and_place(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"pu": preset("pusher")})
        items = [{"name": "occupied", "channel": "a"}, {"name": "vacated"}, {"name": "occupied", "channel": "a"}]
        body = json.dumps({"time_ms": NOW // 1000, "events": items}).encode()
        answer = await sender.send("pu", body, ("X-Pusher-Signature", mac(body).hex()))
        assert len(json.loads(answer.body)) == 3
        rows = await sender.rows("select id, type from events order by seq")
        assert [type for _, type in rows] == ["occupied", "vacated", "occupied"]
        ids = [json.loads(id) for id, _ in rows]
        assert [id[:2] for id in ids] == [[str(NOW // 1000), str(index)] for index in range(3)]
        assert ids[0][2] == ids[2][2]
        again = await sender.send("pu", body, ("X-Pusher-Signature", mac(body).hex()))
        assert (again.body, dict(again.headers)) == (answer.body, {"idempotent-replayed": "true"})
        later = json.dumps({"time_ms": NOW // 1000 + 1, "events": items}).encode()
        await sender.send("pu", later, ("X-Pusher-Signature", mac(later).hex()))
        assert await sender.rows("select count(*) from events") == [(6,)]

    async def test_a_big_batch_reads_its_envelope_once(self) -> None:
        door = compile_door("pu", preset("pusher"), 5 << 20)
        body = json.dumps({"time_ms": 1, "events": [{"name": str(n)} for n in range(5000)]}).encode()
        request = posted("pu", body)
        incoming = msgspec.structs.replace(_incoming(request, body))
        began = time.process_time()
        arrivals = door.arrivals(incoming, "hmac")
        assert len({one.id for one in arrivals}) == 5000
        assert time.process_time() - began < 1


def _incoming(request: Any, body: bytes) -> Any:
    from oncebox.accept.incoming import Incoming

    return Incoming("POST", request.url, "", request.headers, frozenset(), body, body, NOW)


class TestUrls:
    def square(self, url: str, body: bytes) -> tuple[str, str]:
        return "x-square-hmacsha256-signature", base64.b64encode(mac(url.encode() + body)).decode()

    @pytest.mark.parametrize(
        ("public", "own", "signed"),
        [
            (None, None, "https://hooks.example.com/in/sq?a=1"),
            ("https://pub.example", None, "https://pub.example/in/sq?a=1"),
            ("https://pub.example/sub", None, "https://pub.example/sub/in/sq?a=1"),
            ("https://pub.example", "https://own.example/x", "https://own.example/x?a=1"),
            (None, "https://own.example/x?b=2", "https://own.example/x?b=2"),
        ],
    )
    async def test_the_configured_url_is_what_is_signed(
        self, tmp_path: Any, public: str | None, own: str | None, signed: str
    ) -> None:
        settings = Settings(server=Server(public_url=public), sources={"sq": preset("square", url=own)})
        body = b'{"event_id": "e1"}'
        async with open_store(tmp_path / "inbox.db") as store:
            inbox = Inbox(compile_doors(settings), store, lambda: NOW)
            request = posted("sq", body, self.square(signed, body), ("Host", "evil.example"), query="a=1")
            assert (await inbox.accept("sq", request)).status == 202
            if signed != request.url:
                wrong = posted("sq", body, self.square(request.url, body), query="a=1")
                assert (await inbox.accept("sq", wrong)).status == 401

    async def test_a_refused_request_is_judged_again_under_the_url_of_then_corrected(
        self, open_inbox: OpenInbox
    ) -> None:
        sender = await open_inbox({"sq": preset("square", url="https://wrong.example/x")})
        body, right = b'{"event_id": "e1"}', "https://right.example/x"
        await sender.refused("sq", body, self.square(right + "?a=1", body), query="a=1")
        await sender.inbox.refusals.flush()
        sender.inbox.doors = {"sq": compile_door("sq", preset("square", url=right), 1000)}
        refused = await sender.store.read(_first_refused)
        assert refused.url == "https://wrong.example/x?a=1"
        assert (await sender.inbox.again(refused)).status == 202


def _first_refused(db: Any) -> Any:
    from oncebox.store.refusals import load

    return load(db, 1)


class TestCredentials:
    @pytest.mark.parametrize(
        ("name", "header"),
        [
            ("telegram", "X-Telegram-Bot-Api-Secret-Token"),
            ("buildkite_token", "X-Buildkite-Token"),
            ("okta", "Authorization"),
            ("gitlab", "X-Gitlab-Token"),
        ],
    )
    async def test_a_token_is_never_stored(self, open_inbox: OpenInbox, name: str, header: str) -> None:
        unique = MissingId("unique")
        batch: dict[str, Any] = {} if name != "okta" else {"batch": "array"}
        sender = await open_inbox({"x": preset(name, on_missing_id=unique, **batch)})
        await sender.send("x", "[{}]", (header, "s3cret"))
        await sender.refused("x", "[{}]", (header, "s3cret-typo"))
        await sender.inbox.refusals.flush()
        stored = await sender.rows("select headers from payloads union all select headers from refused")
        assert len(stored) == 2
        assert all(b"s3cret" not in headers for (headers,) in stored)

    async def test_what_was_kept_without_its_token_needs_trust(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"gl": preset("gitlab")})
        await sender.refused("gl", "{}", ("X-Gitlab-Token", "s3cret"))
        await sender.inbox.refusals.flush()
        refused = await sender.store.read(_first_refused)
        refused = msgspec.structs.replace(refused, headers=(("idempotency-key", "k"),))
        again = await sender.inbox.again(refused)
        assert again.status == 401
        assert "--trust" in json.loads(again.body)["detail"]
        assert (await sender.inbox.again(refused, trust=True)).status == 200

    async def test_a_signed_token_that_binds_the_body_is_kept(self) -> None:
        door = compile_door("nf", preset("netlify"), 1000)
        assert "x-webhook-signature" not in door.hidden
        assert not door.secretless

    async def test_meta_s_verify_token_is_no_key_and_a_wrong_one_gets_403(self, open_inbox: OpenInbox) -> None:
        unique, token = MissingId("unique"), Secret("env:T", "tok")
        sender = await open_inbox({"wa": preset("meta", on_missing_id=unique, verify_token=token)})
        query = "hub.mode=subscribe&hub.challenge=42&hub.verify_token="
        answer = await sender.send("wa", "", query=query + "tok", method="GET")
        assert (answer.status, answer.body, dict(answer.headers)) == (200, b"42", {"x-content-type-options": "nosniff"})
        for wrong in ("s3cret", "", "to"):
            answer = await sender.send("wa", "", query=query + wrong, method="GET")
            assert (answer.status, json.loads(answer.body)["type"]) == (403, "urn:oncebox:problem:bad-signature")
        forged = hmac.new(b"tok", b"{}", hashlib.sha256).hexdigest()
        assert (await sender.send("wa", "{}", ("X-Hub-Signature-256", f"sha256={forged}"))).status == 401
        await sender.inbox.refusals.flush()
        assert await sender.rows("select count(*) from refused where url like '%tok%'") == [(0,)]


class TestShares:
    async def test_of_a_flood_only_a_share_is_kept_and_all_is_counted(
        self, open_inbox: OpenInbox, source: Callable[..., Source]
    ) -> None:
        sender = await open_inbox({"noisy": source(), "quiet": source()})
        moment = 0.0
        sender.inbox.refusals._timer = lambda: moment
        for round in range(3):
            for _ in range(500):
                await sender.send("noisy", "{}")
            await sender.send("quiet", json.dumps({"round": round}))
            await sender.inbox.refusals.flush()
            moment += 1.0
        assert dict(await sender.rows("select source, count(*) from refused group by 1")) == {"noisy": 200, "quiet": 3}
        assert await sender.rows("select max(n) from refused where source = 'noisy'") < [(260,)]
        counted = "select n from totals where source = 'noisy' and what = 'refused:bad-id' and minute = 0"
        assert await sender.rows(counted) == [(1500,)]
        assert sender.inbox.refusals.totals["noisy", "bad-id"] == 1500

    async def test_large_requests_use_their_share_up_sooner(
        self, open_inbox: OpenInbox, source: Callable[..., Source]
    ) -> None:
        sender = await open_inbox({"big": source()})
        sender.inbox.refusals._timer = lambda: 0.0
        for _ in range(100):
            await sender.send("big", json.dumps({"x": "x" * (1 << 20)}))
        assert 1 < sum(map(len, sender.inbox.refusals._waiting.values())) < 30


async def test_only_the_methods_of_its_own_handshake_are_taken(open_inbox: OpenInbox) -> None:
    sender = await open_inbox({"slack": preset("slack"), "ce": preset("cloudevents")})
    for name, method in (("slack", "GET"), ("slack", "HEAD"), ("ce", "GET"), ("ce", "PUT"), ("ce", "OPTIONS")):
        assert (await sender.send(name, "", method=method)).status == 405
    assert {slug for _, slug in sender.inbox.refusals.totals} == {"bad-request"}


async def test_empty_batches_are_taken(open_inbox: OpenInbox) -> None:
    sources = {
        "line": preset("line"),
        "hubspot": Source(preset="hubspot", unsigned=True),
        "sendgrid": Source(preset="sendgrid", unsigned=True),
        "lines": Source(id="body:/id", batch="ndjson", unsigned=True),
    }
    sender = await open_inbox(sources)
    body = b'{"destination":"U1","events":[]}'
    signature = base64.b64encode(mac(body)).decode()
    assert (await sender.send("line", body, ("X-Line-Signature", signature))).status == 200
    for name, empty in (("hubspot", "[]"), ("sendgrid", "[]\r\n"), ("lines", ""), ("lines", "\n\n")):
        answer = await sender.send(name, empty)
        assert (answer.status, answer.body) == (202, b"[]")
    assert await sender.rows("select count(*) from events") == [(0,)]


PIECES = st.sampled_from([*"%+&=;aAfF09é \r\n\t_", "%41", "%3d", "%26", "%ff", "=3D", "%", "%zz", "=\n", " \n"])


@given(st.lists(PIECES, max_size=30).map("".join))
def test_fields_are_read_as_the_standard_library_reads_them(text: str) -> None:
    wanted = parse_qsl(text, keep_blank_values=True, errors="surrogateescape")
    assert form_pairs(FORM[1], text.encode()) == [
        tuple(part.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape") for part in pair)
        for pair in wanted
    ]


@pytest.mark.parametrize("unit", [b"%ff", b"%41a", b"+%", b"a=", b"\xff", b"%7B%22a%22%3A1%7D%2C"])
def test_a_large_form_costs_little(unit: bytes) -> None:
    body = b"a=" + unit * ((1 << 20) // len(unit))
    began = time.process_time()
    with suppress(ValueError):
        form_pairs(FORM[1], body)
    assert time.process_time() - began < 0.05
