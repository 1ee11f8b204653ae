"""Forged signatures for as long as it takes: `scripts/test -m torture tests/torture/test_signatures.py`."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import timeit
from collections.abc import Callable

import pytest

from accept.forging import forge
from oncebox.accept.doors import compile_door
from oncebox.accept.incoming import Incoming
from oncebox.config import Source
from oncebox.secret import Secret

pytestmark = pytest.mark.torture


def test_a_hundred_thousand_forged_requests_are_refused_quickly() -> None:
    seed = random.randrange(1 << 32)
    assert forge(100_000, seed) == [], seed


def test_a_request_of_a_kilobyte_costs_little_beside_its_hash() -> None:
    body, secret = json.dumps({"id": "evt_1", "pad": "y" * 1000}).encode(), "s3cret"
    door = compile_door("gh", Source(preset="github", secrets=(Secret("env:X", secret),)), 1 << 20)
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {"x-hub-signature-256": f"sha256={digest}", "x-github-delivery": "d", "x-github-event": "push"}
    incoming = Incoming("POST", "https://h.example/in/gh", "", headers, frozenset(), body, body, 0)

    def whole() -> None:
        door.arrivals(door.open(incoming), door.verify(incoming).scheme)

    hashing = best(lambda: hmac.digest(secret.encode(), body, "sha256"))
    assert best(whole) - hashing < 15e-6


def best(work: Callable[[], object]) -> float:
    """Seconds of one call, the least of many rounds."""
    return min(timeit.repeat(work, number=1000, repeat=20)) / 1000
