"""Counterfeits of what every sender has sent are refused, whatever is done to them."""

from __future__ import annotations

import random

import msgspec
import pytest

from accept.signed import recorded
from oncebox.errors import Rejected
from senders.counterfeit import BY_SENDER, GENUINE, SENDERS, counterfeit, judge, receiver


def test_a_thousand_counterfeits_are_refused_quickly() -> None:
    seed = random.randrange(1 << 32)
    assert judge(1000, seed).wrong == [], seed


@pytest.mark.torture
def test_a_hundred_thousand_counterfeits_are_refused_quickly() -> None:
    seed = random.randrange(1 << 32)
    tally = judge(100_000, seed)
    assert tally.wrong == [], seed
    assert tally.reasons.keys() == set(SENDERS)
    # The forgery has come as far as its signature: it was well made and by somebody else.
    untried = [name for name, why in tally.reasons.items() if not any("another" in words for words in why)]
    assert untried == []


def test_counterfeits_are_made_of_every_genuine_request() -> None:
    dice = random.Random(1)
    made = {vector["id"] for _, vector, _ in (counterfeit(dice) for _ in range(5000))}
    assert made == {vector["id"] for vector in GENUINE}


@pytest.mark.parametrize("name", SENDERS)
@pytest.mark.parametrize("host", ["a[b", "a]b", "[::1", "[x]", "a:b", "a:99999999", "", "@", "a\x00b", "xn--\xff"])
def test_an_impossible_host_is_refused_like_any_other(name: str, host: str) -> None:
    # Anybody may send any Host, and where no URL is configured it takes part in what is signed.
    incoming = msgspec.structs.replace(recorded(BY_SENDER[name][0]), url=f"https://{host}/in/it?a=1", query="a=1")
    with pytest.raises(Rejected) as caught:
        receiver(name)[1].verify(incoming, int(BY_SENDER[name][0]["now"]))
    assert (caught.value.status, caught.value.slug) == (401, "bad-signature")
