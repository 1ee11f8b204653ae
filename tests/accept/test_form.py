"""Forms are read before a signature in them can be: none may cost more than it weighs, and none is a fault of ours."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from oncebox.accept.form import form_pairs

TYPE = "multipart/form-data; boundary=X"


def part(head: bytes) -> bytes:
    return b"--X\r\n" + head + b"\r\n\r\nv\r\n--X--"


@pytest.mark.parametrize("piece", [b"; a=b", b';"', b"; a*1=b"])
@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_the_parameters_of_a_part_cost_what_they_weigh(piece: bytes, size: int) -> None:
    head = b"Content-Disposition: form-data" + piece * (size // len(piece))
    many = b"--X\r\n".join([head + b"\r\n\r\nv\r\n"] * ((1 << 20) // size))
    began = time.process_time()
    with suppress(ValueError):
        form_pairs(TYPE, b"--X\r\n" + many + b"--X--")
    assert time.process_time() - began < 1


def test_long_parameters_are_refused_with_a_reason() -> None:
    with pytest.raises(ValueError, match="parameters of content-disposition are longer than 1024"):
        form_pairs(TYPE, part(b"Content-Disposition: form-data" + b"; a=b" * 300))
    with pytest.raises(ValueError, match="parameters of content-type are longer than 1024"):
        form_pairs(TYPE + "; a=b" * 300, part(b""))


@pytest.mark.parametrize("more", ["boundary*0=a; boundary*=b", "boundary*0=\"a\"; boundary*=utf-8''%ff"])
def test_parameters_that_the_mail_parser_trips_over_make_no_form(more: str) -> None:
    with pytest.raises(ValueError, match="parameters of content-type"):
        form_pairs(f"multipart/form-data; {more}", b"x")
    with pytest.raises(ValueError, match="parameters of content-disposition"):
        form_pairs(TYPE, part(f"Content-Disposition: form-data; {more.replace('boundary', 'name')}".encode()))


def test_a_name_in_any_spelling_is_still_read() -> None:
    head = b'X-Other: 1\r\nContent-Disposition: form-data; filename="' + b"f" * 800 + b'"; name=id'
    assert form_pairs(TYPE, part(head)) == [("id", "v")]
