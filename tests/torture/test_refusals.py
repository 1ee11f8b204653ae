"""A flood of junk: the ring stays at its bound, everything is counted, and nothing good is held up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from accept.requests import NOW, posted
from oncebox.accept.doors import compile_door
from oncebox.accept.inbox import Inbox
from oncebox.config import Source
from oncebox.secret import Secret
from oncebox.store.sqlite import open_store

pytestmark = [pytest.mark.torture, pytest.mark.anyio]
JUNK = 100_000


@pytest.mark.parametrize("size", [100, 20_000])
async def test_a_hundred_thousand_junk_requests_leave_the_ring_at_its_bound(tmp_path: Path, size: int) -> None:
    github = Source(preset="github", secrets=(Secret("env:X", "s3cret"),))
    plain = Source(id="body:/id", unsigned=True)
    doors = {"gh": compile_door("gh", github, 5 << 20), "good": compile_door("good", plain, 5 << 20)}
    signature = ("X-Hub-Signature-256", "sha256=" + "0" * 64)
    body = b"x" * size
    async with open_store(tmp_path / "inbox.db") as store, anyio.create_task_group() as group:
        inbox = Inbox(doors, store, lambda: NOW)
        group.start_soon(inbox.refusals.run)
        for number in range(JUNK):
            assert (await inbox.accept("gh", posted("gh", body, signature))).status == 401
            if number % 100 == 0:
                answer = await inbox.accept("good", posted("good", json.dumps({"id": number})))
                assert answer.status == 202
        await inbox.refusals.flush()
        found = await store.read(_look)
        assert found["kept"] <= 200
        assert found["kept"] == 200 or size > 100
        assert found["bytes"] <= 16 << 20
        assert found["counted"] == JUNK == inbox.refusals.totals["gh", "bad-signature"]
        assert found["good"] == JUNK // 100
        group.cancel_scope.cancel()


def _look(db: Any) -> Mapping[str, int]:
    kept, size = db.execute("select count(*), sum(length(body)) from refused").fetchone()
    counted = "select n from totals where source = 'gh' and what = 'refused:bad-signature' and minute = 0"
    return {
        "kept": kept,
        "bytes": size,
        "counted": db.execute(counted).fetchone()[0],
        "good": db.execute("select count(*) from events where source = 'good'").fetchone()[0],
    }
