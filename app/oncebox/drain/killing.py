"""Killing: what is due runs, and none of it is settled: as a process leaves it that dies in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import anyio

from oncebox.drain.handler import TRANSACTIONAL
from oncebox.drain.load import Handlers
from oncebox.drain.target import HandlerTarget, Target
from oncebox.drain.transactional import TransactionalRunner
from oncebox.model import Claimed
from oncebox.store import Store, Transaction
from oncebox.store.slices import HELD


class Killed(Exception):
    """Undoes what a transaction has written so far."""


async def run_unsettled(store: Store, handlers: Handlers, targets: Sequence[Target], now: Callable[[], int]) -> None:
    """Start what is due, as many as run at once, and let it end; nobody is told how. What was running when another
    process died runs alone, as ever. `targets` are those that are not Python handlers."""
    others = [HandlerTarget(one, store, now) for one in handlers.handlers if one.kind != TRANSACTIONAL]
    outside: dict[str, Target] = {target.name: target for target in [*others, *targets]}
    runner = TransactionalRunner([one for one in handlers.handlers if one.kind == TRANSACTIONAL], now)
    for claimed in await _started(store, handlers.names, runner.names, outside, now()):
        if claimed.target in outside:
            with anyio.move_on_after(outside[claimed.target].timeout):
                await outside[claimed.target].deliver(claimed)
        else:
            await _undone(store, runner, claimed, now())


async def _started(
    store: Store, suspicious: Sequence[str], inside: Sequence[str], outside: Mapping[str, Target], now: int
) -> list[Claimed]:
    suspect = await store.claim_suspect(suspicious, now)
    if suspect is not None:
        return [suspect]
    room = dict.fromkeys(inside, HELD) | {name: target.concurrency for name, target in outside.items()}
    return [claimed for name, most in room.items() for claimed in await store.claim(name, most, now)]


async def _undone(store: Store, runner: TransactionalRunner, claimed: Claimed, now: int) -> None:
    def work(db: Transaction) -> None:
        runner.run(claimed, db)
        raise Killed

    with suppress(Killed):
        await store.write(work, now)
