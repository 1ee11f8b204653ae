"""Writer: the only thing that submits work to the connection that writes, one transaction as one call at a time.

Never a chain of awaits: a cancelled await still runs its statement, and the transaction would stay open for everyone.
Order of service: accepts and operations, then settles and claims, then one slice of handlers, then one step of care.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import aiosqlite

from oncebox.errors import Overloaded, StorageFull, StoreError
from oncebox.model import Arrival, Call, Performed, Stored
from oncebox.seldom import Seldom, kind_of
from oncebox.store import Perform, accepts
from oncebox.store.books import Books
from oncebox.store.calls import Asked, Calls
from oncebox.store.care import Care, trial
from oncebox.store.edge import BUSY, unwritten
from oncebox.store.edge import answer as _answer
from oncebox.store.faults import is_busy, is_of_the_disk
from oncebox.store.jobs import Job, Jobs, Work, roll_back
from oncebox.store.performing import Performing
from oncebox.store.queue import Queue, Waiting
from oncebox.store.routing import Routing
from oncebox.store.thread import on_thread

T = TypeVar("T")

BUSY_PATIENCE = 5.0
BUSY_PAUSE = 0.02
TRIAL = 1.0
CARE = 1.0
SOON = 0.1

log = logging.getLogger("oncebox.store")


class Writer:
    """One loop, one job at a time. `woken` is told the targets that got deliveries, after each commit."""

    def __init__(
        self,
        db: aiosqlite.Connection,
        raw: sqlite3.Connection,
        books: Books,
        routing: Routing,
        *,
        queue: int,
        care: Care,
        performing: Performing,
        woken: Callable[[set[str]], None],
    ) -> None:
        self.trouble = ""
        self.short = ""
        self._db, self._raw, self._books, self._routing = db, raw, books, routing
        self._woken, self._care, self._performing = woken, care, performing
        self._accepts = Queue(queue)
        self._calls = Calls(queue)
        self._jobs = Jobs(raw, books)
        self._slices: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._trial_at = 0.0
        self._faults, self._holders = Seldom(log), Seldom(log, logging.WARNING)
        self._care_at = time.monotonic() + CARE

    def accept(self, arrivals: Sequence[Arrival]) -> asyncio.Future[list[Stored]]:
        """Queue a request for the next group. Raises Overloaded, StorageFull."""
        self.admit()
        future = self._accepts.add(arrivals)
        self._wake.set()
        return future

    def perform(self, call: Call, perform: Perform, size: int) -> asyncio.Future[Performed]:
        """Queue a call for the next group of operations. Raises Overloaded, StorageFull."""
        self.admit()
        future = self._calls.add(call, perform, size)
        self._wake.set()
        return future

    def admit(self) -> None:
        """Refuse what is new while the process stops or the disk is short. Raises Overloaded, StorageFull."""
        if self._closing:
            raise Overloaded("the server is stopping; send the same request again in a moment", 2)
        if self.short:
            raise StorageFull(self.short, 30)
        if self.trouble and time.monotonic() < self._trial_at:
            raise StorageFull(self.trouble, 5)

    async def submit(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work inside a transaction, shared with other small writes; it may run twice if a neighbour fails."""
        return await self._enqueue(self._jobs, work)  # type: ignore[no-any-return]  # the work's own type

    async def slice(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work that makes its own transactions; behind accepts and small writes, one a round."""
        return await self._enqueue(self._slices, work)  # type: ignore[no-any-return]  # the work's own type

    async def run(self) -> None:
        """Serve until `close`. Nothing that a job does ends the loop."""
        background = (self._serve_slice, self._serve_checkpoint, self._serve_care)
        turns = (self._serve_accepts, self._serve_calls, self._serve_jobs, *background)
        while not (self._closing and self._idle()):
            if self._idle():
                await self._rest()
            for turn in turns:
                try:
                    await turn()
                except Exception as error:  # noqa: BLE001  # told, though not each time; the writer goes on
                    if not is_of_the_disk(error):
                        what = f"writer failed turn={turn.__name__.removeprefix('_serve_')}"
                        self._faults.say(time.monotonic(), kind_of(error), what, error)
                    elif not is_busy(error):  # all is tried again
                        self._faults.say(time.monotonic(), "disk", unwritten(error))
                    await asyncio.sleep(BUSY_PAUSE)

    def tell(self, targets: set[str]) -> None:
        """Deliveries of these targets are new or due; safe from any thread."""
        if targets:
            self._loop.call_soon_threadsafe(self._woken, targets)

    def crowded(self) -> bool:
        """Whether accepts come as fast as they are answered, from many at once."""
        return self._accepts.crowded()

    def close(self) -> None:
        """Take no more accepts; `run` returns when everything that waits is done."""
        self._closing = True
        self._wake.set()

    def _idle(self) -> bool:
        return not (self._accepts or self._calls or self._jobs or self._slices)

    def _enqueue(self, queue: deque[Job] | Jobs, work: Work) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        queue.append(Job(work, future))
        self._wake.set()
        return future

    async def _rest(self) -> None:
        self._wake.clear()
        pause = max(0.0, self._care_at - time.monotonic())
        try:
            await asyncio.wait_for(self._wake.wait(), pause)
        except TimeoutError:
            return

    async def _serve_accepts(self) -> None:
        if not self._accepts:
            return
        await self._accepts.gather()
        group = self._accepts.take()
        try:
            outcome = await on_thread(
                self._db, accepts.serve, self._raw, [w.arrivals for w in group], self._books, self._routing
            )
        except sqlite3.Error as error:
            await self._refuse_group(group, error)
            return
        self.trouble = ""
        self._accepts.answered(len(group))
        for waiting, answer in zip(group, outcome.answers, strict=True):
            _answer(waiting.future, answer)
        if outcome.targets:
            self._woken(outcome.targets)
        if outcome.replays:
            self._care.noticed(outcome)
            self._care_at = min(self._care_at, time.monotonic() + SOON)

    def _roll_back(self) -> None:
        roll_back(self._raw, self._books)

    async def _serve_calls(self) -> None:
        """Operations, as many as a few milliseconds hold."""
        if not self._calls:
            return
        group = self._calls.take()
        try:
            served = await on_thread(self._db, self._performing.serve, group)
        except sqlite3.Error as error:
            await self._refuse_group(group, error)
            return
        self._calls.put_back(group[len(served.answers) :])
        for asked, outcome in zip(group, served.answers, strict=False):
            _answer(asked.future, outcome)
        if served.targets:
            self._woken(served.targets)

    async def _refuse_group(self, group: list[Waiting] | list[Asked], error: sqlite3.Error) -> None:
        """A busy file is waited for, each request at most five seconds; a full disk refuses at once."""
        if is_busy(error):
            old = [w for w in group if time.monotonic() - w.since > BUSY_PATIENCE]
            self._accepts.put_back([w for w in group if isinstance(w, Waiting) and w not in old])
            self._calls.put_back([w for w in group if isinstance(w, Asked) and w not in old])
            for waiting in old:
                _answer(waiting.future, Overloaded(BUSY, 2))
            if old:
                self._warn_of_a_holder(f"requests={len(old)} were told to come back")
            await asyncio.sleep(BUSY_PAUSE)
            return
        self.trouble = unwritten(error)
        self._trial_at = time.monotonic() + TRIAL
        self._faults.say(time.monotonic(), "refused", f"requests refused requests={len(group)} error={error}")
        for waiting in group:
            _answer(waiting.future, StorageFull(self.trouble, 5))

    def _warn_of_a_holder(self, what: str) -> None:
        line = f"another program has held the file for {BUSY_PATIENCE:g} s: {what}"
        self._holders.say(time.monotonic(), "held", line)

    async def _serve_jobs(self) -> None:
        if not self._jobs:
            return
        jobs = self._jobs.take()
        try:
            results = await on_thread(self._db, self._jobs.together, jobs)
        except sqlite3.Error as error:
            if is_busy(error):
                self._jobs.put_back(jobs)
                if time.monotonic() - jobs[0].since > BUSY_PATIENCE:
                    self._warn_of_a_holder("outcomes and claims wait")
                await asyncio.sleep(BUSY_PAUSE)
                return
            results = [error] * len(jobs)
        for job, result in zip(jobs, results, strict=True):
            _answer(job.future, result)

    async def _serve_slice(self) -> None:
        """A busy file is waited for as long as by an accept."""
        if not self._slices:
            return
        job = self._slices.popleft()
        try:
            _answer(job.future, await on_thread(self._db, self._guarded, job.work))
        except Exception as error:
            if is_busy(error) and time.monotonic() - job.since < BUSY_PATIENCE:
                self._slices.appendleft(job)
                raise
            _answer(job.future, error)

    def _take_stock(self, short: str) -> None:
        if short and not self.short:
            log.error("nothing is accepted: %s", short)
        elif self.short and not short:
            log.warning("events are accepted again")
        self.short = short

    async def _serve_care(self) -> None:
        """One step of care when nothing else waits, or when it is overdue."""
        now = time.monotonic()
        if now < self._care_at or (not self._idle() and now < self._care_at + CARE):
            return
        self._care_at = now + CARE
        self._take_stock(self._care.shortage())
        if self.trouble and now >= self._trial_at:
            self._trial_at = now + TRIAL
            await on_thread(self._db, self._guarded, trial)
            self.trouble = ""
        work = self._care.step()
        if work is not None:
            self.tell(await on_thread(self._db, self._guarded, work))

    async def _serve_checkpoint(self) -> None:
        if self._care.wants_checkpoint():
            await on_thread(self._db, self._guarded, self._care.checkpoint)

    def _guarded(self, work: Work) -> Any:
        try:
            return work(self._raw)
        except Exception:
            self._roll_back()
            raise
        except BaseException as error:  # SystemExit of a function of others would end this loop
            self._roll_back()
            raise StoreError(f"the function ended with {type(error).__name__}; nothing of it was kept") from error
