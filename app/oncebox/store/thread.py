"""Thread: how a plain function gets onto a connection's own thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import aiosqlite

T = TypeVar("T")


async def on_thread(db: aiosqlite.Connection, work: Callable[..., T], *args: object) -> T:
    """Run a function on the connection's thread, whole: cancelling the wait does not stop it in the middle.

    aiosqlite has no public way to do this; its version is pinned, and a test fails when this one moves.
    """
    return await db._execute(work, *args)  # type: ignore[no-any-return, no-untyped-call, unused-ignore]  # see above
