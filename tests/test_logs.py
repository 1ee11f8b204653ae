"""Lines of the log that anybody outside can cause."""

from __future__ import annotations

import logging

import pytest

from oncebox.logs import QUIET, Seldom


def test_what_is_said_again_and_again_is_told_at_most_every_ten_seconds_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seldom = Seldom(logging.getLogger("oncebox.test"), "no HTTP")
    for now in (0.0, 1.0, QUIET - 0.1, QUIET, QUIET + 1, 2 * QUIET, 5 * QUIET):
        seldom.say("peer=1.2.3.4", now)
    assert [record.getMessage() for record in caplog.records] == [
        "request refused peer=1.2.3.4: no HTTP",
        "request refused peer=1.2.3.4 requests=3: no HTTP",
        "request refused peer=1.2.3.4 requests=2: no HTTP",
        "request refused peer=1.2.3.4: no HTTP",
    ]
