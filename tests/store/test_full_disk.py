"""A commit that the disk refuses: nothing is done twice afterwards, and nothing is lost."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncebox.errors import StorageFull
from oncebox.model import Claimed
from oncebox.store import Transaction
from oncebox.store.sqlite import SQLiteStore
from store.conftest import NOW, Running, arrival, books_are_right, drain, rows

pytestmark = pytest.mark.anyio


@contextmanager
def full(database: Path) -> Iterator[None]:
    """No file may grow beyond what the log has now."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{database}-wal").stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def count(claimed: Claimed, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (claimed.event.id,))


@pytest.mark.parametrize("held", [False, True])
async def test_a_refused_commit_of_a_slice_doubles_no_effect(store: SQLiteStore, database: Path, held: bool) -> None:
    await store.write(lambda db: db.execute("create table effects (id text) strict"), NOW)
    await store.accept([arrival("e1")])
    if held:
        claimed = await store.claim("handler", 1, NOW + 1)
        await store.release(claimed, NOW + 1)
        await store.accept([arrival(f"more{n}") for n in range(200)])
        await store.process(["handler"], Running(count), lambda: NOW + 1)
    with full(database), pytest.raises(StorageFull):
        await drain(store, Running(count))
    await drain(store, Running(count))
    assert await rows(store, "select id, count(*) from effects group by 1 having count(*) <> 1") == []
    assert await rows(store, "select distinct state from deliveries") == [("done",)]
    await books_are_right(store)
