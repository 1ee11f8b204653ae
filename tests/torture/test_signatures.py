"""Forged signatures for as long as it takes: `scripts/test -m torture tests/torture/test_signatures.py`."""

from __future__ import annotations

import random

import pytest

from accept.forging import forge

pytestmark = pytest.mark.torture


def test_a_hundred_thousand_forged_requests_are_refused_quickly() -> None:
    seed = random.randrange(1 << 32)
    assert forge(100_000, seed) == [], seed
