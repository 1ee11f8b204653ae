"""Bodies: read within bounds, decoded within bounds, split into exact items."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox import body
from oncebox.accept.batch import compile_batch, split
from oncebox.accept.slices import slice_items
from oncebox.body import ClientGone, decode, read_body
from oncebox.errors import Rejected

LIMIT = 1000


def sent(*chunks: bytes, gone: bool = False) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What a client sends; with `gone` it leaves in the middle. Each message is waited for."""
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if gone:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return messages.pop(0)

    return receive


async def unread() -> dict[str, Any]:
    raise AssertionError("the body was asked for")


def raised(expected: int, slug: str, call: Callable[[], object]) -> str:
    with pytest.raises(Rejected) as caught:
        call()
    assert (caught.value.status, caught.value.slug) == (expected, slug)
    return caught.value.detail


class TestReading:
    @pytest.mark.anyio
    async def test_a_body_in_pieces_is_put_together(self) -> None:
        assert await read_body(sent(b"a", b"", b"bc", b""), LIMIT, None) == b"abc"

    @pytest.mark.anyio
    async def test_a_body_that_is_there_at_once_is_read_without_waiting(self) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"abc"}

        assert await read_body(receive, LIMIT, 3) == b"abc"

    @pytest.mark.anyio
    async def test_a_declared_length_over_the_limit_is_refused_unread(self) -> None:
        with pytest.raises(Rejected) as caught:
            await read_body(unread, LIMIT, LIMIT + 1)
        assert (caught.value.status, caught.value.slug) == (413, "too-large")
        assert ("connection", "close") in caught.value.headers

    @pytest.mark.anyio
    @pytest.mark.parametrize("chunks", [[b"x" * LIMIT], [b"x"] * LIMIT, [b"x" * (LIMIT - 1), b"x"]])
    async def test_the_limit_itself_is_allowed_and_one_byte_more_is_not(self, chunks: list[bytes]) -> None:
        assert len(await read_body(sent(*chunks), LIMIT, None)) == LIMIT
        with pytest.raises(Rejected) as caught:
            await read_body(sent(*chunks, b"x", gone=True), LIMIT, None)
        assert caught.value.slug == "too-large"

    @pytest.mark.anyio
    @pytest.mark.parametrize("chunks", [[], [b"a"], [b"a", b"b"]])
    async def test_a_client_that_leaves_in_the_middle_is_no_request(self, chunks: list[bytes]) -> None:
        with pytest.raises(ClientGone):
            await read_body(sent(*chunks, gone=True), LIMIT, 100)

    @pytest.mark.anyio
    @pytest.mark.parametrize("chunks", [0, 1])
    async def test_a_body_that_takes_too_long_is_given_up(self, chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(body, "SLOWEST", 0.01)
        left = chunks

        async def receive() -> dict[str, Any]:
            nonlocal left
            if left == 0:
                await asyncio.Event().wait()
            left -= 1
            return {"type": "http.request", "body": b"a", "more_body": True}

        with pytest.raises(Rejected) as caught:
            await read_body(receive, LIMIT, None)
        assert caught.value.status == 408

    @pytest.mark.anyio
    async def test_a_cancelled_reading_ends_what_it_waits_for(self) -> None:
        ended = asyncio.Event()

        async def receive() -> dict[str, Any]:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

        task = asyncio.ensure_future(read_body(receive, LIMIT, None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


class TestDecoding:
    @pytest.mark.parametrize("name", ["", "identity", " Identity "])
    def test_no_encoding_leaves_the_bytes_alone(self, name: str) -> None:
        assert decode(b"\x1f\x8b", name, LIMIT) == b"\x1f\x8b"

    @pytest.mark.parametrize("name", ["gzip", "GZIP", " x-gzip "])
    def test_gzip_of_one_or_more_members(self, name: str) -> None:
        assert decode(gzip.compress(b"abc"), name, LIMIT) == b"abc"
        assert decode(gzip.compress(b"abc") + gzip.compress(b"") + gzip.compress(b"def"), name, LIMIT) == b"abcdef"

    def test_deflate_with_and_without_its_wrapper(self) -> None:
        raw = zlib.compressobj(wbits=-15)
        assert decode(zlib.compress(b"abc"), "deflate", LIMIT) == b"abc"
        assert decode(raw.compress(b"abc") + raw.flush(), "deflate", LIMIT) == b"abc"

    @given(st.binary(max_size=300))
    def test_what_was_encoded_comes_back(self, data: bytes) -> None:
        assert decode(gzip.compress(data), "gzip", LIMIT) == data
        assert decode(zlib.compress(data), "deflate", LIMIT) == data

    @pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip", "compress", "\x1b[2J", "aes128gcm"])
    def test_other_encodings_are_refused_by_name(self, name: str) -> None:
        assert "\x1b" not in raised(415, "bad-encoding", lambda: decode(b"abc", name, LIMIT))

    @pytest.mark.parametrize(
        "data",
        [
            b"{}",
            gzip.compress(b"abc" * 50, mtime=0)[:-1],
            gzip.compress(b"abc", mtime=0)[:-8],
            gzip.compress(b"abc", mtime=0) + b"junk",
            gzip.compress(b"abc", mtime=0)[:-8] + b"\0" * 8,
            gzip.compress(b"abc", mtime=0)[:5],
        ],
    )
    def test_damaged_gzip_is_refused(self, data: bytes) -> None:
        raised(415, "bad-encoding", lambda: decode(data, "gzip", LIMIT))

    @given(st.binary(min_size=1, max_size=200), st.sampled_from(["gzip", "deflate"]))
    def test_no_bytes_raise_anything_but_a_refusal(self, data: bytes, name: str) -> None:
        try:
            assert len(decode(data, name, LIMIT)) <= LIMIT
        except Rejected as why:
            assert why.status in {413, 415}  # noqa: PT017  # either is right, and so is no error

    def test_a_bomb_is_stopped_at_the_limit(self) -> None:
        bomb = gzip.compress(b"\0" * (128 << 20))
        assert len(bomb) < 140_000
        tracemalloc.start()
        raised(413, "too-large", lambda: decode(bomb, "gzip", 5 << 20))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 << 20

    def test_many_small_members_are_bounded_together(self) -> None:
        raised(413, "too-large", lambda: decode(gzip.compress(b"x" * 300) * 4, "gzip", LIMIT))

    def test_members_cost_what_they_weigh(self) -> None:
        # Before a signature is looked at: 5 MiB of empty members held everybody up for 16 s.
        empty = gzip.compress(b"", mtime=0)
        began = time.process_time()
        raised(415, "bad-encoding", lambda: decode(empty * ((5 << 20) // len(empty)), "gzip", 5 << 20))
        assert time.process_time() - began < 1
        assert decode(empty * 9_999 + gzip.compress(b"abc"), "gzip", 5 << 20) == b"abc"


class TestSplitting:
    def items(self, form: str, data: bytes | str) -> list[bytes]:
        return split(data.encode() if isinstance(data, str) else data, compile_batch(form))

    def test_items_are_the_exact_bytes_between_the_commas(self) -> None:
        data = '[{"a" : 1.0},\r\n{"b":"\\u0041 é"} ,\n 3, "x"]\r\n'
        assert self.items("array", data) == [b'{"a" : 1.0}', '{"b":"\\u0041 é"}'.encode(), b"3", b'"x"']

    def test_a_pointer_leads_to_the_list(self) -> None:
        assert self.items("array:/data/events", '{"data": {"events": [{"id": 1}, 2]}}') == [b'{"id": 1}', b"2"]
        assert self.items("array", b"\xef\xbb\xbf[1]") == [b"1"]
        assert self.items("array:/e", b'\xef\xbb\xbf{"e":[]}') == []

    def test_lines_end_with_lf_or_crlf_and_empty_ones_do_not_count(self) -> None:
        assert self.items("ndjson", b'{"a":1}\n{"b":2}\r\n\n\r\n  \n{"c":3}') == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
        assert self.items("ndjson", b"") == []

    @given(
        st.lists(st.recursive(st.text(max_size=3) | st.integers(), lambda one: st.lists(one, max_size=3)), max_size=5)
    )
    def test_both_readers_of_lists_agree(self, values: list[object]) -> None:
        data = json.dumps(values).encode()
        assert slice_items(data, (), 100) == self.items("array", data)

    @given(st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=9), max_size=3), max_size=8))
    def test_every_list_of_items_comes_back(self, values: list[dict[str, object]]) -> None:
        texts = [json.dumps(value).encode() for value in values]
        assert self.items("array", b"[" + b", ".join(texts) + b"]") == texts
        assert self.items("ndjson", b"\r\n".join(texts)) == texts

    def test_lone_surrogates_and_stray_bytes_leave_the_slices_exact(self) -> None:
        items = [b'{"x": "\\ud800" , "id":1}', b'"\xff,]"', b"[1,[2]]", b"NaN", b"9" * 5000, b'{"\\udfff":2}']
        whole = b" [ " + b" ,\r\n".join(items) + b"\n] "
        assert self.items("array", whole) == items
        for form, data in (
            ("array:/e", b'{"e": 1, "x":"\\ud800", "e": %b}'),
            ("array:/1/~1", b'["\\ud800", {"/": %b}]'),
        ):
            assert self.items(form, data % whole) == items
            assert self.items(form, data % b"[]") == []
        assert self.items("array", b'[{"\xff": "\xfe"}]') == [b'{"\xff": "\xfe"}']
        for data in (b'{"e": "\\ud800"}', b'["\\ud800", 1', b'["\\ud800"] x'):
            raised(400, "bad-body", lambda data=data: self.items("array:/e", data))  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("form", "data"),
        [
            ("array", "{}"),
            ("array", "[1,"),
            ("array", "7"),
            ("array", ""),
            ("array", "[1] x"),
            ("array", "[" * 100_000),
            ("array:/e", "{}"),
            ("array:/e", '{"e": {}}'),
            ("array:/e", '{"e": null}'),
            ("array:/e", "["),
        ],
    )
    def test_what_is_no_list_is_refused(self, form: str, data: str) -> None:
        raised(400, "bad-body", lambda: self.items(form, data))

    @pytest.mark.parametrize("form", ["array", "ndjson"])
    def test_10_000_items_are_the_most(self, form: str) -> None:
        def text(count: int) -> bytes:
            items = [b'{"id":%d}' % number for number in range(count)]
            return b"[" + b",".join(items) + b"]" if form == "array" else b"\n".join(items)

        assert len(self.items(form, text(10_000))) == 10_000
        assert self.items(form, text(10_000))[9_999] == b'{"id":9999}'
        raised(400, "bad-body", lambda: self.items(form, text(10_001)))

    @pytest.mark.parametrize("data", [b"[" + b"1," * 2_600_000 + b"1]", b"1\n" * 2_600_000, b"\n" * 5_200_000])
    def test_a_list_of_millions_is_never_held(self, data: bytes) -> None:
        form = "array" if data.startswith(b"[") else "ndjson"
        tracemalloc.start()
        with suppress(Rejected):
            assert self.items(form, data) == []
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12 << 20

    def test_cloudevents_are_a_batch_by_their_content_type_only(self) -> None:
        batch = compile_batch("cloudevents")
        assert batch.applies("application/CloudEvents-batch+json; charset=utf-8")
        assert not batch.applies("application/cloudevents+json")

    @pytest.mark.parametrize("text", ["", "list", "array:", "array:events", "ndjson:/a"])
    def test_other_forms_are_not_known(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"array|pointer"):
            compile_batch(text)
