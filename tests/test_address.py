"""Hosts, URLs and files as they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.address import host_name, host_of, is_loopback, is_url, no_database


@pytest.mark.parametrize(
    "text",
    ["http://a", "https://a.example:8443/x?y#z", "http://[::1]:80/", "http://me:pw@a/", "http://a?b", "http://ü/"],
)
def test_urls_are_urls(text: str) -> None:
    assert is_url(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "ftp://a", "http://", "http:///x", "http://a b", "http://a/\n", "http://a/\x00", "http://a\r\n"),
        *("http://a:0", "http://a:70000", "http://a:x", "http://:80", "http://[::1", "http://a/\x7f", " http://a"),
    ],
)
def test_what_is_no_url_is_none(text: str) -> None:
    assert not is_url(text)


@given(st.text(max_size=40))
def test_no_text_raises(text: str) -> None:
    for function in (is_url, is_loopback, host_name, host_of, no_database):
        function(text)
    assert not is_url(f"http://{text}") or "\n" not in text


def test_hosts_are_compared_without_port_case_and_last_dot() -> None:
    assert [host_name(host) for host in ("A.example:80", "a.example.", "[::1]:80", "[::1]")] == [
        *("a.example", "a.example"),
        *("::1", "::1"),
    ]
    assert [host_of(url) for url in ("https://A.example:1/x", "null", "http://[::1]/", "http://[")] == [
        *("a.example", ""),
        *("::1", ""),
    ]


def test_this_machine_has_many_names_for_itself() -> None:
    assert all(map(is_loopback, ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("", "0.0.0.0", "localhost.example", "127.0.0.1.example", "10.0.0.1")))
