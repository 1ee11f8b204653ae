"""Settings of the whole suite: one event loop, as many random examples as were asked for."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# What the rooms share of a real server process; assertions there say as much as those of the tests.
SHARED = ("rig", "servers", "twins", "crashes", "aborts", "stops", "slow", "attacks")
pytest.register_assert_rewrite(*(f"process.{name}" for name in SHARED))

from process.servers import serve  # noqa: E402, F401  # only after they are registered

# No deadline: two busy cores make single examples slow without meaning anything.
settings.register_profile("suite", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("torture", parent=settings.get_profile("suite"), max_examples=100_000)
settings.load_profile("suite")  # `--hypothesis-profile=torture` takes its place


@pytest.fixture
def anyio_backend() -> str:
    """The store lives on asyncio, so that is the only backend there is to test."""
    return "asyncio"
