"""Backtest: past events through today's transactional handlers, in a scratch file; what fails, by its error."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from shutil import disk_usage
from typing import Any, TypeVar

import msgspec

from oncebox.clock import wall_clock
from oncebox.drain.drain import set_up
from oncebox.drain.handler import TRANSACTIONAL, Handler
from oncebox.drain.load import Handlers
from oncebox.drain.transactional import TransactionalRunner
from oncebox.errors import OnceboxError
from oncebox.model import Claimed
from oncebox.store.choice import Choice
from oncebox.store.history import Past, stretch
from oncebox.store.scratch import Scratch, Taken, Unreadable
from oncebox.store.tables import Row, rows, table

T = TypeVar("T")
# Runs a query on the past, in one short transaction.
Read = Callable[[Callable[[Any], T]], T]

EVENTS, ROWS, LATER = 200, 1000, 200
SAMPLES, GROUPS = 5, 200
LONGEST = 200
OTHERS = "other errors: more kinds than are told apart"
LEAST_FREE = 256 << 20

_NUMBER = re.compile(r"\d+")


class Group(msgspec.Struct):
    """The same fault of one handler, whatever numbers its text has; some of the events that show it."""

    target: str
    error: str
    count: int = 0
    seqs: list[int] = []


class Tally(msgspec.Struct):
    """What a backtest came to. `skipped` are events whose body is gone; `position` is the last number looked at."""

    events: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    position: int = 0
    groups: dict[tuple[str, str], Group] = {}

    def fail(self, target: str, error: str, seq: int) -> None:
        """Count a failure."""
        line = (error.strip().splitlines() or ["no reason is known"])[0][:LONGEST]
        key = (target, _NUMBER.sub("#", line))
        if key not in self.groups and len(self.groups) >= GROUPS:
            key, line = (target, OTHERS), OTHERS
        group = self.groups.setdefault(key, Group(target, line))
        group.count += 1
        self.failed += 1
        if len(group.seqs) < SAMPLES and seq not in group.seqs:
            group.seqs.append(seq)


class Backtest:
    """One run over the past. A handler that asks to be called later is, once, after all others."""

    def __init__(self, scratch: Scratch, handlers: Sequence[Handler[..., Any]], now: Callable[[], int]) -> None:
        self.tally = Tally()
        self._scratch = scratch
        self._now = now
        self._runner = TransactionalRunner(handlers, now)
        # Of what was put off: the past event that it comes from.
        self._roots: dict[tuple[int, str], int] = {}

    async def run(self, events: Sequence[Past]) -> None:
        """These events, one after the other, each with all that its handlers emit."""
        self.tally.events += len(events)
        await self._each(await self._scratch.take(events), None)

    async def finish(self) -> None:
        """What was put off, in order, for the last time."""
        while taken := await self._scratch.put_off(LATER):
            for one in taken:
                await self._each([one], self._roots.pop((_seq(one), one.target), None))

    async def _each(self, taken: Taken, root: int | None) -> None:
        for one in taken:
            if isinstance(one, Unreadable):
                self.tally.fail(one.target, one.why, root or one.seq)
            else:
                await self._one(one, root or one.event.seq)

    async def _one(self, claimed: Claimed, root: int) -> None:
        """One attempt, then what it emitted; `root` is the past event that it comes from."""
        done = await self._scratch.store.process_alone(claimed, self._runner, self._now)
        for settled in done.settled:
            if settled.state == "done":
                self.tally.done += 1
            elif settled.state == "pending" and settled.attempt == 1 and (settled.error or "").startswith("Retry:"):
                self._roots[settled.seq, settled.target] = root
            else:
                self.tally.fail(settled.target, settled.error or "", root)
        if done.targets:
            await self._each(await self._scratch.emitted(), root)


async def backtest(
    scratch: Scratch,
    handlers: Handlers,
    read: Read[Any],
    choice: Choice,
    between: tuple[int, int],
    *,
    tables: Sequence[str] = (),
    names: Sequence[str],
    told: Callable[[Tally], None] = lambda _tally: None,
    now: Callable[[], int] = wall_clock,
) -> Tally:
    """Copy the tables, run the set-ups, then all past events that are meant through the handlers of these names.

    `told` hears how far it is. Raises HandlerError for a set-up that fails, StoreError for a table that is not there.
    """
    for name in tables:
        await _copy(scratch, read, name)
    await set_up(scratch.store, handlers, now)
    chosen = [one for one in handlers.handlers if one.kind == TRANSACTIONAL and one.name in names]
    test = Backtest(scratch, chosen, now)
    after, upto = between
    while after < upto:
        found = read(lambda db, after=after: stretch(db, choice, after, upto, EVENTS))  # type: ignore[misc]  # an int
        _refuse_full(scratch)
        await test.run(found.events)
        after = test.tally.position = found.position
        test.tally.skipped += found.skipped
        told(test.tally)
    await test.finish()
    return test.tally


def _seq(one: Claimed | Unreadable) -> int:
    return one.seq if isinstance(one, Unreadable) else one.event.seq


async def _copy(scratch: Scratch, read: Read[Any], name: str) -> None:
    found = read(lambda db: table(db, name))
    await scratch.shape(found)
    after: Row | None = None
    while True:
        some, after = read(lambda db, after=after: rows(db, found, after, ROWS))  # type: ignore[misc]  # a row
        await scratch.copy(found, some)
        if after is None:
            return


def _refuse_full(scratch: Scratch) -> None:
    folder = scratch.store.path.parent
    if disk_usage(folder).free < LEAST_FREE:
        raise OnceboxError(
            f"{folder}: less than {LEAST_FREE >> 20} MiB are left there for the scratch file; narrow the backtest, or "
            "name a roomier place by $TMPDIR"
        )
