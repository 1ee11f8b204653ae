"""The front half on a real store: the order of the checks, receipts, replays, refusals."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from accept.conftest import OpenInbox
from accept.requests import NOW
from oncebox.accept.door import unique_id, without_parameters
from oncebox.accept.doors import compile_doors
from oncebox.accept.presets import PRESETS
from oncebox.accept.refusal import PER_SOURCE
from oncebox.config import MissingId, Settings, Source, SourceReply
from oncebox.errors import ConfigError
from oncebox.model import Refused
from oncebox.secret import Secret

pytestmark = pytest.mark.anyio

Make = Callable[..., Source]
HMAC = {"scheme": "hmac", "hash": "sha256", "from": "header:X-Signature", "encoding": "hex", "message": "{body}"}
KEYS = (Secret("env:NEW", "new secret"), Secret("env:OLD", "old secret"))


def signed(body: bytes, secret: str = "new secret") -> tuple[str, str]:
    return "X-Signature", hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class TestReceipts:
    async def test_the_first_call_and_each_replay_get_the_same_bytes(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source()})
        first = await sender.send("shop", '{"id": "evt_1"}')
        again = await sender.send("shop", '{"id": "evt_1"}')
        assert first.status == again.status == 202
        assert first.body == again.body
        assert first.body == b'{"source":"shop","id":"evt_1","received_at":"2026-11-30T00:53:20.000000Z"}'
        assert first.content_type == again.content_type == "application/json"
        assert first.headers == ()
        assert again.headers == (("idempotent-replayed", "true"),)
        assert await sender.rows("select count(*) from events") == [(1,)]

    async def test_what_is_stored_is_what_was_on_the_wire(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(type="header:X-Type")})
        body = b'\xef\xbb\xbf{"id": "a", "x": "\xff\\ud800"}\r\n'
        wire = gzip.compress(body)
        assert (await sender.send("shop", wire, ("Content-Encoding", "gzip"), ("X-Type", "t"))).status == 202
        assert (await sender.send("shop", body, ("X-Type", "t"))).headers != ()
        assert await sender.rows("select body, encoding from payloads") == [(wire, "gzip")]
        assert await sender.rows("select body_hash, type, conflicts from events left join replays using (seq)") == [
            (hashlib.sha256(body).digest(), "t", None)
        ]

    async def test_a_replay_gets_the_reply_that_the_first_call_got(self, open_inbox: OpenInbox, source: Make) -> None:
        reply = SourceReply(status=200, content_type="text/xml", body="<Response/>")
        sender = await open_inbox({"twilio": source(reply=reply), "other": source()})
        first = await sender.send("twilio", '{"id": 1}')
        assert (first.status, first.content_type, first.body) == (200, "text/xml", b"<Response/>")
        sender.inbox.doors = {"twilio": msgspec.structs.replace(sender.inbox.doors["other"], source="twilio")}
        again = await sender.send("twilio", '{"id": 1}')
        assert (again.status, again.content_type, again.body) == (200, "text/xml", b"<Response/>")
        assert (await sender.send("twilio", '{"id": 2}')).status == 202

    async def test_credentials_are_not_stored(self, open_inbox: OpenInbox, source: Make) -> None:
        token = {"scheme": "token", "from": "header:X-Our-Token"}
        sender = await open_inbox({"shop": source(id="header:X-Id", signature=token, secrets=(KEYS[0],))})
        headers = [
            ("Authorization", "Bearer s"),
            ("Cookie", "s"),
            ("X-Gitlab-Token", "s"),
            ("Proxy-Authorization", "s"),
        ]
        answer = await sender.send("shop", b"", ("X-Id", "1"), ("X-Our-Token", "new secret"), ("A", "b"), *headers)
        assert answer.status == 202
        ((stored,),) = await sender.rows("select headers from payloads")
        assert json.loads(stored) == [["x-id", "1"], ["a", "b"]]

    async def test_repeated_headers_are_stored_as_they_came(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source()})
        await sender.send("shop", '{"id": 1}', ("X-A", "1"), ("X-A", "2"))
        ((stored,),) = await sender.rows("select headers from payloads")
        assert json.loads(stored) == [["x-a", "1"], ["x-a", "2"]]

    async def test_nul_is_left_out_of_headers_and_types(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(type="header:X-Type")})
        await sender.send("shop", '{"id": 1}', ("X-Type", "a\0b"))
        assert await sender.rows("select type, json(headers) from events join payloads using (seq)") == [
            ("ab", '[["x-type","ab"]]')
        ]


class TestOrderOfChecks:
    async def test_each_check_comes_before_the_next(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox(
            {"shop": source(id="body:/id", signature=HMAC, secrets=KEYS, max_body=50), "mail": source()}
        )
        bad = ("Content-Encoding", "br"), ("X-Signature", "00")
        assert (await sender.refused("nobody", b"x" * 99, *bad))["slug"] == "unknown-source"
        assert (await sender.refused("shop", b"x" * 99, *bad))["slug"] == "too-large"
        assert (await sender.refused("shop", b"x", *bad))["slug"] == "bad-encoding"
        assert (await sender.refused("shop", b"x", bad[1]))["slug"] == "bad-signature"
        assert (await sender.refused("shop", b'{"a": 1}', signed(b'{"a": 1}')))["slug"] == "bad-id"
        assert (await sender.send("shop", b'{"id": 1}', signed(b'{"id": 1}'))).status == 202
        assert (await sender.refused("shop", b'{"id": 1}', bad[1]))["slug"] == "bad-signature"

    async def test_a_decoded_body_over_the_limit_is_too_large(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(max_body=1000)})
        bomb = gzip.compress(b"x" * 100_000)
        assert (await sender.refused("shop", bomb, ("Content-Encoding", "gzip")))["slug"] == "too-large"

    async def test_a_source_can_say_the_encoding_that_its_sender_does_not(
        self, open_inbox: OpenInbox, source: Make
    ) -> None:
        sender = await open_inbox({"shop": source(encoding="gzip")})
        assert (await sender.send("shop", gzip.compress(b'{"id": 1}'))).status == 202
        assert (await sender.send("shop", b'{"id": 1}', ("Content-Encoding", "identity"))).headers != ()

    async def test_methods_that_a_source_does_not_take_are_named(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(), "sms": source(id="query:id", methods=("GET", "POST"))})
        answer = await sender.send("shop", b"", method="GET")
        assert (answer.status, answer.headers) == (405, (("allow", "POST"),))
        assert (await sender.send("sms", b"", method="GET", query="id=7")).status == 202
        assert (await sender.send("sms", b"", method="PUT")).headers == (("allow", "GET, POST"),)

    async def test_a_local_source_takes_nothing_from_elsewhere(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"demo": source(loopback_only=True)})
        assert (await sender.send("demo", '{"id": 1}')).status == 202
        assert (await sender.send("demo", '{"id": 2}', peer="::1")).status == 202
        for name in ("Forwarded", "X-Forwarded-For", "Via"):
            assert (await sender.refused("demo", '{"id": 3}', (name, "127.0.0.1")))["slug"] == "unauthorized"
        assert (await sender.refused("demo", '{"id": 3}', peer="192.0.2.7"))["slug"] == "unauthorized"

    async def test_whatever_the_store_says_is_a_problem_and_counted(
        self, open_inbox: OpenInbox, source: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        sender = await open_inbox({"shop": source(), "many": source(batch="array")})
        await sender.store.change(lambda db, _: db.execute("drop table payloads"))
        problem = await sender.refused("shop", '{"id": 1}')
        assert (problem["status"], problem["slug"]) == (503, "overloaded")
        assert "send it again later" in problem["detail"]
        assert "payloads" not in problem["detail"]
        assert "payloads" in caplog.text
        assert (await sender.refused("many", '[{"id": 1}]'))["status"] == 503
        assert sender.inbox.refusals.totals["shop", "overloaded"] == 1

    async def test_another_body_that_is_refused_is_kept_to_look_at(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"strict": source(on_conflict="reject")})
        await sender.send("strict", '{"id": 1}')
        assert (await sender.refused("strict", '{"id": 1, "x": 2}'))["status"] == 422
        await sender.inbox.refusals.flush()
        [(slug, detail, body)] = await sender.rows("select slug, detail, body from refused")
        assert (slug, body) == ("id-conflict", b'{"id": 1, "x": 2}')
        assert detail.startswith("the id '1' of source strict ")

    async def test_a_full_queue_is_503_and_says_when_to_come_back(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source()}, queue=2)
        answers = await asyncio.gather(*(sender.send("shop", json.dumps({"id": number})) for number in range(50)))
        refused = [answer for answer in answers if answer.status != 202]
        assert refused
        for answer in refused:
            assert (answer.status, answer.headers) == (503, (("retry-after", "1"),))
            assert json.loads(answer.body)["type"] == "urn:oncebox:problem:overloaded"
        assert await sender.rows("select count(*) from events") == [(50 - len(refused),)]

    async def test_another_body_is_refused_where_the_source_says_so(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"strict": source(on_conflict="reject"), "shop": source()})
        for name in ("strict", "shop"):
            await sender.send(name, '{"id": 1}')
        assert (await sender.refused("strict", '{"id": 1, "x": 2}'))["slug"] == "id-conflict"
        assert (await sender.send("strict", '{"id": 1}')).status == 202
        assert (await sender.send("shop", '{"id": 1, "x": 2}')).headers != ()


class TestSecrets:
    async def test_every_secret_is_tried_and_remembers_its_use(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(id="body:/id", signature=HMAC, secrets=KEYS)})
        body = b'{"id": 1}'
        assert sender.inbox.last_used == {}
        assert (await sender.send("shop", body, signed(body, "old secret"))).status == 202
        assert sender.inbox.last_used == {("shop", 1): NOW}
        assert (await sender.send("shop", body, signed(body, "lost secret"))).status == 401
        assert await sender.rows("select verified from events") == [("hmac",)]

    async def test_a_sender_gets_the_status_that_it_wants_for_a_wrong_signature(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"gc": Source(preset="gocardless", secrets=(KEYS[0],))})
        assert (await sender.send("gc", b'{"events": []}', ("Webhook-Signature", "00" * 32))).status == 498


class TestMissingIds:
    async def test_equal_bodies_are_one_event_under_a_body_hash(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(on_missing_id=MissingId("body-hash"))})
        first = json.loads((await sender.send("shop", b"not json")).body)
        assert first["id"] == "sha256-" + hashlib.sha256(b"not json").hexdigest()
        assert (await sender.send("shop", b"not json")).headers != ()
        assert (await sender.send("shop", b"not json ")).headers == ()
        assert json.loads((await sender.send("shop", '{"id": "x"}')).body)["id"] == "x"

    async def test_a_window_bounds_how_long_a_body_hash_absorbs(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(on_missing_id=MissingId("body-hash", 600.0))})
        now = NOW
        sender.inbox.clock = lambda: now
        first = await sender.send("shop", b"same")
        now += 599_000_000
        assert (await sender.send("shop", b"same")).body == first.body
        now += 2_000_000
        second = await sender.send("shop", b"same")
        assert (second.headers, second.body != first.body) == ((), True)

    async def test_unique_makes_each_request_its_own_event(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(id=None, on_missing_id=MissingId("unique"))})
        ids = {json.loads((await sender.send("shop", b"same")).body)["id"] for _ in range(20)}
        assert len(ids) == 20
        assert all(id.startswith("oncebox-") for id in ids)

    async def test_a_bad_id_is_refused_whatever_becomes_of_missing_ones(
        self, open_inbox: OpenInbox, source: Make
    ) -> None:
        sender = await open_inbox({"shop": source(on_missing_id=MissingId("unique"))})
        assert (await sender.refused("shop", '{"id": 1.5}'))["slug"] == "bad-id"
        assert (await sender.send("shop", '{"id": null}')).status == 202

    def test_own_ids_sort_by_time_and_are_uuids_of_version_7(self) -> None:
        one, two = unique_id(NOW, 2**74 - 1), unique_id(NOW + 1000, 0)
        assert one < two
        assert one[8 + 14] == "7"


class TestBatches:
    async def test_each_item_is_an_event_with_its_exact_bytes(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"sg": source(batch="array")})
        body = b'[{"id": 1} ,\r\n{"id" : "b"},{"id": 1}]\r\n'
        answer = await sender.send("sg", body)
        again = await sender.send("sg", body)
        assert [item["id"] for item in json.loads(answer.body)] == ["1", "b", "1"]
        assert (again.body, again.headers) == (answer.body, (("idempotent-replayed", "true"),))
        assert answer.headers == ()
        assert await sender.rows("select body from payloads order by seq") == [(b'{"id": 1}',), (b'{"id" : "b"}',)]

    async def test_one_new_item_makes_it_no_replay(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"lines": source(batch="ndjson")})
        assert (await sender.send("lines", '{"id": 1}\n')).body.startswith(b"[{")
        assert (await sender.send("lines", '{"id": 1}\n{"id": 2}')).headers == ()

    async def test_a_bad_item_is_named_and_nothing_is_stored(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"sg": source(batch="array")})
        problem = await sender.refused("sg", '[{"id": 1}, {"id": 2}, {"it": 3}]')
        assert (problem["slug"], problem["index"]) == ("bad-id", 2)
        assert problem["detail"] == "item 2: no value at /id; the item has: it"
        assert (await sender.refused("sg", '{"id": 1}'))["slug"] == "bad-body"
        assert await sender.rows("select count(*) from events") == [(0,)]

    async def test_an_empty_batch_is_taken(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"sg": source(batch="array"), "line": source(batch="array", reply=SourceReply())})
        answer = await sender.send("sg", "[]")
        assert (answer.status, answer.body, answer.headers) == (202, b"[]", ())
        assert ((await sender.send("line", "[]")).status, (await sender.send("line", '[{"id":1}]')).status) == (
            200,
            200,
        )

    async def test_an_items_content_type_is_its_own(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"ce": source(batch="cloudevents")})
        await sender.send("ce", '[{"id": 1}]', ("Content-Type", "application/cloudevents-batch+json"))
        await sender.send("ce", '{"id": 2}', ("Content-Type", "application/cloudevents+json; charset=utf-8"))
        assert await sender.rows("select content_type from payloads order by seq") == [
            ("application/cloudevents+json",),
            ("application/cloudevents+json; charset=utf-8",),
        ]


class TestRefusals:
    async def test_refused_requests_are_kept_and_can_be_judged_again(self, open_inbox: OpenInbox, source: Make) -> None:
        wrong = source(id="body:/wrong", signature=HMAC, secrets=(Secret("env:X", "typo"),))
        sender = await open_inbox({"gh": wrong, "fixed": source(id="body:/id", signature=HMAC, secrets=KEYS)})
        body = b'{"id": 1}'
        await sender.refused("gh", body, signed(body), ("X-A", "1"), ("X-A", "2"), ("Cookie", "s"), query="a=1")
        await sender.inbox.refusals.flush()
        ((at, slug, method, url, headers, kept),) = await sender.rows(
            "select at, slug, method, url, headers, body from refused"
        )
        assert (at, slug, method, kept) == (NOW, "bad-signature", "POST", body)
        assert url == "https://hooks.example.com/in/gh?a=1"
        pairs = tuple(tuple(pair) for pair in json.loads(headers))
        assert pairs == ((signed(body)[0].lower(), signed(body)[1]), ("x-a", "1"), ("x-a", "2"))
        sender.inbox.doors = {"gh": msgspec.structs.replace(sender.inbox.doors["fixed"], source="gh")}
        refused = Refused(source="gh", at=at, slug=slug, detail="", method=method, url=url, headers=pairs, body=kept)
        assert (await sender.inbox.again(refused)).status == 202
        assert (await sender.inbox.again(refused)).headers == (("idempotent-replayed", "true"),)
        assert await sender.rows("select source, id, verified from events") == [("gh", "1", "hmac")]

    async def test_trust_skips_the_signature_and_says_so(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"gh": source(id="body:/id", signature=HMAC, secrets=KEYS)})
        refused = Refused(
            source="gh", at=NOW, slug="", detail="", method="POST", url="u", headers=(), body=b'{"id": 1}'
        )
        assert (await sender.inbox.again(refused)).status == 401
        assert not sender.inbox.refusals.totals
        assert (await sender.inbox.again(refused, trust=True)).status == 202
        assert await sender.rows("select verified from events") == [("trusted",)]

    async def test_what_carries_the_secret_is_not_kept(self, open_inbox: OpenInbox, source: Make) -> None:
        token = {"scheme": "token", "from": "query:secret"}
        sender = await open_inbox({"mc": source(id="body:/id", signature=token, secrets=(KEYS[0],))})
        await sender.refused("mc", '{"it": 1}', query="a=1&secret=new+secret&b=%20")
        await sender.inbox.refusals.flush()
        assert await sender.rows("select url from refused") == [("https://hooks.example.com/in/mc?a=1&b=%20",)]
        assert without_parameters("/x?s%65cret=1", frozenset({"secret"})) == "/x"

    async def test_every_refusal_is_counted_by_its_slug(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(max_body=10)})
        await sender.refused("shop", "x" * 11)
        await sender.refused("shop", "{}")
        await sender.refused("shop", "{}")
        await sender.refused("nobody", "{}")
        assert dict(sender.inbox.refusals.totals) == {
            ("shop", "too-large"): 1,
            ("shop", "bad-id"): 2,
            ("", "unknown-source"): 1,
        }

    async def test_what_waits_to_be_kept_is_bounded(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"noisy": source(), "quiet": source()})
        await sender.refused("quiet", '{"first": 1}')
        for number in range(PER_SOURCE + 50):
            await sender.refused("noisy", json.dumps({"n": number}))
        for _ in range(20):
            await sender.refused("noisy", json.dumps({"n": "x" * (1 << 20)}))
        await sender.inbox.refusals.flush()
        ((count, size),) = await sender.rows("select count(*), sum(length(body)) from refused where source = 'noisy'")
        assert count <= PER_SOURCE
        assert size <= 8 << 20
        assert await sender.rows("select count(*) from refused where source = 'quiet'") == [(1,)]

    async def test_no_answer_tells_anything_about_a_secret(self, open_inbox: OpenInbox, source: Make) -> None:
        sender = await open_inbox({"shop": source(id="body:/id", signature=HMAC, secrets=KEYS)})
        body = b'{"id": 1}'
        problem = json.dumps(await sender.refused("shop", body, ("X-Signature", "11" * 32)))
        for text in ("secret", signed(body)[1], signed(body, "old secret")[1]):
            assert text not in problem.replace("another secret", "")


class TestHandshakes:
    async def test_a_verification_request_is_answered_and_not_stored(self, open_inbox: OpenInbox) -> None:
        sender = await open_inbox({"dropbox": dropbox()})
        answer = await sender.send("dropbox", b"", method="GET", query="challenge=abc")
        assert (answer.status, answer.body) == (200, b"abc")
        assert ("x-content-type-options", "nosniff") in answer.headers
        problem = await sender.refused("dropbox", b"", method="GET")
        assert (problem["status"], problem["slug"]) == (405, "bad-request")
        await sender.inbox.refusals.flush()
        assert await sender.rows("select count(*) from refused") == [(0,)]
        assert await sender.rows("select count(*) from events") == [(0,)]


def dropbox() -> Source:
    return Source(preset="dropbox", secrets=(KEYS[0],), on_missing_id=MissingId("body-hash", 5.0))


class TestStart:
    @pytest.mark.parametrize("name", sorted(PRESETS))
    def test_every_preset_opens_or_says_what_it_needs(self, name: str) -> None:
        if PRESETS[name].id is None:
            with pytest.raises(ConfigError, match=rf"sources\.x: {name}: .*body-hash.*unique"):
                compile_doors(Settings(sources={"x": Source(preset=name, unsigned=True)}))
        source = Source(preset=name, unsigned=True, on_missing_id=MissingId("unique"))
        assert "POST" in compile_doors(Settings(sources={"x": source}))["x"].methods

    def test_internal_sources_have_no_door(self) -> None:
        assert compile_doors(Settings(sources={"mail": Source(internal=True)})) == {}

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"id": "nowhere"}, r"sources\.x: \"nowhere\" is not where"),
            ({"id": "body:/id", "type": "body:"}, r"sources\.x: .*body:"),
            ({"id": "body:/id", "handshake": "slak"}, r'sources\.x\.handshake: .*did you mean "slack"'),
            ({"preset": "stripr"}, 'did you mean "stripe"'),
            ({"id": "header:X-Id", "batch": "array"}, r"sources\.x: every item of a batch would have the same id"),
            ({"id": "body:/id", "batch": "list"}, r"sources\.x\.batch: "),
            ({}, r"sources\.x: nothing says where the id is"),
        ],
    )
    def test_a_source_that_cannot_be_compiled_stops_the_start(self, keys: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            compile_doors(Settings(sources={"x": Source(unsigned=True, **keys)}))
