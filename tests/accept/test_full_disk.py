"""A disk that refuses every write refuses senders, and ends nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pytest

from oncebox.accept.refusal import PER_SOURCE, Refusals
from oncebox.model import Refused

pytestmark = pytest.mark.anyio


async def test_refusals_that_cannot_be_written_wait_within_their_bounds() -> None:
    written: list[Refused] = []
    counted: dict[tuple[str, str], int] = {}
    full = True

    async def refuse(refused: Sequence[Refused], counts: dict[tuple[str, str], int], _now: int) -> None:
        if full:
            raise sqlite3.OperationalError("database or disk is full")
        written.extend(refused)
        counted.update(counts)

    refusals = Refusals(refuse, lambda: 0)
    for n in range(3):
        refusals.keep(request(n))
        refusals.count("gh", "storage-full")
        await refusals.flush()
    full = False
    await refusals.flush()
    assert [one.at for one in written] == [0, 1, 2]
    assert counted == {("gh", "bad-signature"): 3, ("gh", "storage-full"): 3}
    assert len(written) <= PER_SOURCE


def request(at: int) -> Refused:
    return Refused(
        source="gh", at=at, slug="bad-signature", detail="", method="POST", url="/in/gh", headers=(), body=b"{}"
    )
