"""Ids and types: what counts as one, and what is refused in words."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accept.requests import incoming
from oncebox.accept.key import Found, compile_fields
from oncebox.accept.pointer import Pointers, parse_pointer, text_of
from oncebox.errors import ConfigError, Rejected

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def read(spec: str | list[str], body: bytes | str = b"", *headers: tuple[str, str], query: str = "") -> Found:
    return compile_fields({"id": spec}).read(incoming(body, *headers, query=query))


def id_of(spec: str | list[str], body: bytes | str = b"", *headers: tuple[str, str], query: str = "") -> str:
    found = read(spec, body, *headers, query=query).id
    assert found is not None
    return found


def refusal(spec: str | list[str], body: bytes | str = b"", *headers: tuple[str, str], query: str = "") -> str:
    """The words of a refusal or of a missing id."""
    with pytest.raises(Rejected) as caught:
        raise read(spec, body, *headers, query=query).missing or AssertionError("there is an id")
    assert (caught.value.status, caught.value.slug) in {(400, "bad-id"), (400, "bad-body")}
    return caught.value.detail


def escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class TestNumbers:
    def test_integers_past_2_to_the_53rd_keep_every_digit(self) -> None:
        assert id_of("body:/id", '{"id": 9007199254740993}') == "9007199254740993"
        assert id_of("body:/id", '{"id": 18446744073709551615}') == "18446744073709551615"
        assert id_of("body:/id", '{"id": ' + "9" * 1000 + "}") == "9" * 1000

    def test_a_number_and_its_text_are_the_same_id(self) -> None:
        assert id_of("body:/id", '{"id": 1}') == id_of("body:/id", '{"id": "1"}') == "1"

    @pytest.mark.parametrize("value", ["1.0", "1e3", "-0", "true", "false", "{}", "[]", '{"a": 1}', "[1]", "0.5"])
    def test_what_is_neither_text_nor_a_plain_integer_is_refused(self, value: str) -> None:
        assert refusal("body:/id", f'{{"id": {value}}}').startswith("the value at /id is ")

    @given(st.integers())
    def test_every_integer_is_its_own_digits(self, number: int) -> None:
        assert id_of("body:/id", json.dumps({"id": number})) == str(number)


class TestText:
    def test_unicode_is_kept_as_it_is_and_forms_stay_apart(self) -> None:
        for text in ("café-1", "cafe\u0301-1", "معرف-٣", "🎫-👩‍👩‍👧", "ID-1", "id-1", "a  b"):
            assert id_of("body:/id", json.dumps({"id": text})) == text
            assert id_of("body:/id", json.dumps({"id": text}, ensure_ascii=False)) == text

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("a\0b", "U+0000"),
            ("a\nb", "U+000A"),
            ("a\x7f", "U+007F"),
            ("a\x85", "U+0085"),
            (" a", "blank"),
            ("a ", "blank"),
            ("a\u00a0", "blank"),
            ("\u2003a", "blank"),
            ("a" * 1025, "1025 bytes"),
            ("é" * 513, "1026 bytes"),
            ("a\ud800", "lone surrogate"),
        ],
    )
    def test_an_id_that_breaks_the_rules_is_refused_and_never_mended(self, text: str, words: str) -> None:
        assert words in refusal("body:/id", json.dumps({"id": text}))

    def test_1024_bytes_are_the_most(self) -> None:
        assert id_of("body:/id", json.dumps({"id": "é" * 512})) == "é" * 512

    @given(st.text(min_size=1, max_size=40))
    def test_an_id_is_taken_unchanged_or_not_at_all(self, text: str) -> None:
        try:
            found = read("body:/id", json.dumps({"id": text}))
        except Rejected:
            return
        assert found.id == text

    @pytest.mark.parametrize("body", ['{"id": null, "kind": 1}', '{"id": "", "kind": 1}', '{"kind": 1, "id2": 2}'])
    def test_absent_null_and_empty_are_missing(self, body: str) -> None:
        assert read("body:/id", body).id is None

    def test_what_stands_there_and_counts_as_nothing_is_said(self) -> None:
        assert refusal("body:/id", '{"id": null}') == "no value at /id: it is null; the body has: id"
        assert refusal("body:/a/0", '{"a": [""]}') == "no value at /a/0: it is empty; the body has: a"
        assert refusal("header:X-Id", b"", ("X-Id", "")) == "no value in header X-Id: it is empty"
        assert refusal("header:X-Id", b"", ("X-Id", " \t")) == "no value in header X-Id: it is empty"
        assert refusal("form:id", "id=") == "no value in form field id: it is empty; the body has: id"
        assert refusal("query:id", b"", query="id=") == "no value in query parameter id: it is empty"
        assert refusal("query:id", b"", query="x=") == "no value in query parameter id"

    def test_names_that_no_text_can_be_are_told_escaped(self) -> None:
        assert refusal("body:/id", b'{"\\ud800": 1}') == r"no value at /id; the body has: \ud800"
        assert refusal("body:/id", b'{"\\ud800": 1, "\xff": 2}').endswith(r"the body has: \ud800, \udcff")
        assert refusal("body:/id", b"[1]") == "no value at /id; the body is not a JSON object"

    def test_blanks_around_a_header_are_no_part_of_it_and_in_a_body_they_are(self) -> None:
        assert id_of("header:X-Id", b"", ("X-Id", "a b \t ")) == id_of("header:X-Id", b"", ("X-Id", " a b")) == "a b"
        assert "blank" in refusal("header:X-Id", b"", ("X-Id", "a\u00a0"))
        assert "blank" in refusal("body:/id", '{"id": "a "}')
        assert "blank" in refusal("form:id", "id=a+")

    def test_the_names_in_the_body_help_to_mend_a_wrong_pointer(self) -> None:
        words = refusal("body:/event/id", '{"id": 1, "kind": "a", "data": {}}')
        assert words == "no value at /event/id; the body has: id, kind, data"

    def test_the_names_told_are_few_and_printable(self) -> None:
        body = json.dumps({f"k{n}": n for n in range(1000)} | {"\x1b[2J": 1})
        assert refusal("body:/id", body).endswith("k11 and 989 more")
        assert "\x1b" not in refusal("body:/id", '{"\\u001b[2J": 1}')


class TestBytes:
    def test_invalid_utf8_in_the_id_is_refused(self) -> None:
        assert "stray byte" in refusal("body:/id", b'{"id": "bad-\xff\xfe"}')

    def test_invalid_utf8_elsewhere_does_not_matter(self) -> None:
        assert id_of("body:/id", b'{"x": "\xff\xfe", "id": "a", "\xc3(": 1}') == "a"

    def test_lone_surrogates_elsewhere_do_not_matter(self) -> None:
        assert id_of("body:/id", b'{"x": "\\ud800", "\\udfff": 2, "id": 7}') == "7"

    def test_both_at_once_do_not_matter_either(self) -> None:
        assert id_of("body:/id", b'{"x": "\\ud800\xff", "id": "a"}') == "a"
        assert "stray byte" in refusal("body:/id", b'{"x": "\\ud800", "id": "a\xff"}')

    def test_a_byte_order_mark_is_skipped(self) -> None:
        assert id_of("body:/id", b'\xef\xbb\xbf{"id": "a"}') == "a"

    def test_utf16_is_read(self) -> None:
        assert id_of("body:/id", '{"id": "é"}'.encode("utf-16")) == "é"

    def test_of_a_repeated_key_the_last_one_counts(self) -> None:
        assert id_of("body:/id", '{"id": "a", "id": "b"}') == "b"

    @pytest.mark.parametrize(
        "body", [b"", b"{", b'{"id":', b"\x00", b"\xff", b"id=1", b'{"id": 1} x', b'{"a":' + b"[" * 100_000]
    )
    def test_what_is_not_json_has_no_id_and_says_why(self, body: bytes) -> None:
        found = read("body:/id", body)
        assert found.id is None
        assert found.missing is not None
        assert found.missing.slug == "bad-body"

    @given(st.binary(max_size=60))
    def test_no_bytes_raise_anything_but_a_refusal(self, body: bytes) -> None:
        for spec in ("body:/id", "body:/a/0/b", "form:id", "form:id json:/a", "form:id mime:a percent"):
            with suppress(Rejected):
                compile_fields({"id": spec, "type": spec}).read(incoming(body))


class TestPointers:
    def test_escapes_indexes_and_odd_keys(self) -> None:
        body = '{"a/b": {"~": [{"id": 1}, {"id": 2}]}, "q\\"": 3, "": 4, "data id": 5}'
        assert id_of("body:/a~1b/~0/1/id", body) == "2"
        assert id_of('body:/q"', body) == "3"
        assert id_of("body:/", body) == "4"
        assert id_of("body:/data id", body) == "5"

    def test_digits_are_an_index_in_a_list_and_a_key_in_an_object(self) -> None:
        assert id_of("body:/e/0/id", '{"e": [{"id": "list"}]}') == "list"
        assert id_of("body:/e/0/id", '{"e": {"0": {"id": "object"}}}') == "object"
        assert id_of(["body:/e/0", "body:/e/x"], '{"e": {"0": "a", "x": "b"}}') == '["a","b"]'

    def test_a_way_that_ends_early_finds_nothing(self) -> None:
        for body in ('{"e": null}', '{"e": []}', '{"e": 7}', '{"e": "id"}', "[]", "7", "null", '{"e": [1]}'):
            assert read("body:/e/0/id", body).id is None

    def test_a_value_may_also_be_the_parent_of_another(self) -> None:
        assert compile_fields({"id": "body:/a/b", "type": "body:/a"}).read(incoming('{"a": {"b": 1}}')).id == "1"

    @given(JSON_VALUES, st.data())
    def test_every_value_of_every_document_is_found_where_it_is(self, document: object, data: st.DataObject) -> None:
        path: list[str] = []
        value = document
        while isinstance(value, dict | list) and value:
            keys = list(value) if isinstance(value, dict) else range(len(value))
            key = data.draw(st.sampled_from(list(keys)))
            value = value[key]
            path.append(str(key))
        if not path:
            return
        pointer = "".join(f"/{escaped(key)}" for key in path)
        (found,) = Pointers([parse_pointer(pointer)]).read(json.dumps(document).encode())
        assert json.loads(bytes(found)) == value
        if isinstance(value, int) and not isinstance(value, bool):
            assert text_of(found) == str(value)


class TestPlaces:
    def test_headers_are_found_without_case_and_read_as_utf8(self) -> None:
        assert id_of("header:X-Event-ID", b"", ("x-event-id", "a-é")) == "a-é"

    def test_a_header_that_came_twice_names_no_event(self) -> None:
        assert "more than once" in refusal("header:X-Id", b"", ("X-Id", "a"), ("X-Id", "a"))

    def test_forms_and_queries_are_decoded(self) -> None:
        assert id_of("form:id", "a=1&id=a+b%2Bc&x=") == "a b+c"
        assert id_of("query:id", query="id=%C3%A9&x=1") == "é"
        assert "more than once" in refusal("query:id", query="id=1&id=2")
        said = refusal("query:id", query="id=" + "x" * 20_000)
        assert said == "the value in query parameter id cannot be read: it is longer than 16384 bytes"

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
    def test_what_only_some_take_for_a_number_is_said_to_be_one(self, value: str) -> None:
        assert "is a number other than a plain integer" in refusal("body:/id", f'{{"id":{value}}}')
        assert "stray byte" in refusal("form:id", "id=%ff")

    def test_json_inside_a_form_field(self) -> None:
        assert id_of("form:payload json:/trigger_id", 'payload={"trigger_id":"13.7"}') == "13.7"
        assert refusal("form:payload json:/trigger_id", "payload=x").endswith("is not JSON")

    def test_percent_encoding_inside_a_header(self) -> None:
        assert id_of("header:ce-id percent", b"", ("ce-id", "a%20b%C3%A9+")) == "a bé+"
        assert "not UTF-8" in refusal("header:ce-id percent", b"", ("ce-id", "%ff"))

    def test_a_mail_header_inside_a_multipart_field(self) -> None:
        body = (
            '--b\r\nContent-Disposition: form-data; name="headers"\r\n\r\nReceived: by x\r\nMessage-ID:\r\n <m1@x>\r\n'
            '\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n\r\n--b--\r\n'
        )
        kind = ("Content-Type", 'multipart/form-data; boundary="b"')
        assert id_of("form:headers mime:Message-Id", body, kind) == "<m1@x>"
        assert refusal("form:nope", body, kind) == "no value in form field nope; the body has: headers, file"

    def test_a_multipart_body_that_was_cut_off_has_no_fields(self) -> None:
        body = '--b\r\nContent-Disposition: form-data; name="id"\r\n\r\n12'
        assert "does not end" in refusal("form:id", body, ("Content-Type", "multipart/form-data; boundary=b"))

    def test_a_composite_is_the_json_array_of_its_parts(self) -> None:
        spec = ["body:/subscriptionId", "header:X-Part", "hash:body"]
        found = read(spec, '{"subscriptionId": 25}', ("X-Part", 'é"'))
        assert found.id is not None
        assert json.loads(found.id) == list(found.parts)
        assert found.id.startswith('["25","é\\"","')
        assert found.parts[2] == sha256(b'{"subscriptionId": 25}').hexdigest()

    def test_parts_cannot_be_shifted_into_each_other(self) -> None:
        spec = ["body:/a", "body:/b"]
        assert id_of(spec, '{"a": "x,y", "b": "z"}') != id_of(spec, '{"a": "x", "b": "y,z"}')

    def test_a_composite_with_a_part_missing_is_missing(self) -> None:
        assert refusal(["body:/a", "body:/b"], '{"a": 1}') == "no value at /b; the body has: a"

    @pytest.mark.parametrize(
        "spec", ["", "id", "body:", "body:id", "bdy:/id", "header:", "hash:head", "form:a json:b", "form:a mime:"]
    )
    def test_what_is_no_place_stops_the_start_with_a_sentence(self, spec: str) -> None:
        with pytest.raises(ConfigError, match=r"sources\.demo\.id: "):
            compile_fields({"id": spec}, "sources.demo.id")


class TestTypes:
    def type_of(self, spec: str | list[str], body: str, *headers: tuple[str, str]) -> str | None:
        return compile_fields({"id": "header:id", "type": spec}).read(incoming(body, ("id", "1"), *headers)).type

    def test_a_type_is_text_or_nothing(self) -> None:
        assert self.type_of("body:/type", '{"type": "invoice.paid"}') == "invoice.paid"
        assert self.type_of("body:/type", '{"type": 2}') == "2"
        for body in ('{"type": null}', '{"type": {}}', '{"type": true}', "{}", "not json", ""):
            assert self.type_of("body:/type", body) is None

    def test_what_no_store_can_hold_is_left_out_of_a_type(self) -> None:
        assert self.type_of("body:/type", '{"type": "a\\u0000b"}') == "ab"
        assert self.type_of("body:/type", '{"type": "a\\ud800b"}') is None

    def test_a_list_of_types_is_joined_by_dots(self) -> None:
        spec = ["body:/resource", "body:/action"]
        assert self.type_of(spec, '{"resource": "payments", "action": "confirmed"}') == "payments.confirmed"
        assert self.type_of(spec, '{"resource": "payments"}') == "payments"

    def test_an_id_in_a_header_needs_no_readable_body(self) -> None:
        found = compile_fields({"id": "header:id", "type": "body:/type"}).read(incoming(b"\xff\x00", ("id", "x")))
        assert (found.id, found.type, found.missing) == ("x", None, None)
