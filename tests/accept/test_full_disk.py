"""A disk that refuses every write refuses senders, and ends nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pytest

from oncebox.accept.refusal import MAX_BYTES, PER_SOURCE, Refusals
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


async def test_while_they_cannot_be_written_a_flood_at_one_source_pushes_out_no_others() -> None:
    written: list[Refused] = []
    full = True

    async def refuse(refused: Sequence[Refused], _counts: dict[tuple[str, str], int], _now: int) -> None:
        if not full:
            written.extend(refused)
            return
        for n in range(3):
            refusals.keep(request(n, source="quiet"))
        raise sqlite3.OperationalError("database or disk is full")

    refusals = Refusals(refuse, lambda: 0)
    for n in range(8):
        refusals.keep(request(n, body=b"x" * (MAX_BYTES // 8 - 8)))
    await refusals.flush()
    full = False
    await refusals.flush()
    assert [one.at for one in written if one.source == "quiet"] == [0, 1, 2]
    assert [one.at for one in written if one.source == "gh"] == [1, 2, 3, 4, 5, 6, 7]


def request(at: int, source: str = "gh", body: bytes = b"{}") -> Refused:
    return Refused(
        source=source, at=at, slug="bad-signature", detail="", method="POST", url="/in/gh", headers=(), body=body
    )
