"""The targets of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.origin import called, origin_form


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://host/in/demo", b"/in/demo", b"host"),
        (b"HTTPS://host:80/in/demo?a=b#c", b"/in/demo?a=b#c", b"host:80"),
        (b"http://me:secret@host/x@y", b"/x@y", b"host"),
        (b"http://host", b"/", b"host"),
        (b"http://host?q", b"/?q", b"host"),
        (b"http://[::1]:8/%2e", b"/%2e", b"[::1]:8"),
        (b"http:///x", b"/x", b""),
    ],
)
def test_a_whole_url_has_a_path_and_a_host(target: bytes, path: bytes, host: bytes) -> None:
    assert origin_form(target) == (path, host)


@pytest.mark.parametrize(
    "target", [b"*", b"/in/demo", b"/http://host/x", b"host:80", b"", b"http:/host", b"1http://x/"]
)
def test_every_other_target_is_none(target: bytes) -> None:
    assert origin_form(target) is None


@given(st.binary())
def test_a_path_always_begins_with_a_slash(target: bytes) -> None:
    found = origin_form(b"http://" + target)
    assert found is not None
    assert found[0].startswith(b"/")


def test_no_other_host_counts() -> None:
    headers = [(b"Host", b"a"), (b"x", b"1"), (b"host", b"b")]
    assert called(headers, b"c") == [(b"host", b"c"), (b"x", b"1")]
