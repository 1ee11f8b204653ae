"""Settings of the whole suite: one event loop, as many random examples as were asked for."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# What the rooms share of a real server process; assertions there say as much as those of the tests.
SHARED = ("nursery", "rig", "servers", "twins", "crashes", "aborts", "stops", "slow", "attacks")
pytest.register_assert_rewrite(*(f"process.{name}" for name in SHARED))

from process.servers import serve  # noqa: E402, F401  # only after they are registered
from turns import Turns  # noqa: E402

# No deadline: two busy cores make single examples slow without meaning anything.
settings.register_profile("suite", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("torture", parent=settings.get_profile("suite"), max_examples=100_000)
settings.load_profile("suite")  # `--hypothesis-profile=torture` takes its place


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than cores for the whole suite, since many tests wait; four at most.

    A part of it begins sooner without, and torture is to have the machine alone.
    """
    asked = config.option
    torture = "torture" in asked.markexpr.replace("not torture", "")
    part = asked.keyword or asked.lf or asked.collectonly or asked.capture == "no"
    few = part or torture or config.args_source is pytest.Config.ArgsSource.ARGS
    return 0 if few else min(os.cpu_count() or 1, 3) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Only workers have to take turns."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Turns(), "turns")


@pytest.fixture
def anyio_backend() -> str:
    """The store lives on asyncio, so that is the only backend there is to test."""
    return "asyncio"
