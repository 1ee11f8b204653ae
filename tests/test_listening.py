"""Listeners that nothing will ever reach."""

from __future__ import annotations

import pytest

from oncebox.listening import implied, unheard
from oncebox.route import Route

SOURCES = ("demo", "stripe", "mail")


def heard(source: str, emitted: tuple[str, ...] = ()) -> list[str]:
    return list(unheard([("handler greet", Route(source=source, to=("greet",)))], SOURCES, emitted))


def test_a_source_that_is_nearly_another_is_doubted() -> None:
    (note,) = heard("demoo")
    assert note.startswith('handler greet: no source is called "demoo"; did you mean "demo"?')
    assert "[sources.demoo] internal = true" in note


def test_a_glob_that_fits_no_source_is_said_with_those_that_are_there() -> None:
    assert heard("shop-*") == ['handler greet: no source fits "shop-*"; there are: demo, stripe, mail']


@pytest.mark.parametrize("source", ["demo", "*", "str*", "receipts"])
def test_who_can_be_reached_is_not_doubted(source: str) -> None:
    assert heard(source) == []


def test_a_glob_may_be_for_what_handlers_emit() -> None:
    assert heard("shop-*", ("shop-mail",)) == []


def test_a_source_that_only_a_listener_names_is_told_to_be_internal() -> None:
    listeners = [(who, Route(source=who)) for who in ("receipts", "demo", "demoo", "shop-*")]
    (note,) = implied(listeners, SOURCES)
    assert note.startswith('receipts: no source is called "receipts", so it is an internal one')
