"""Performer: every call once for its caller and key, whoever hangs up and however often it is sent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup

from oncebox.clock import wall_clock
from oncebox.deadline import within
from oncebox.errors import Overloaded, StoreError
from oncebox.model import MICROSECONDS, Call, Performed
from oncebox.perform.answer import OUTCOME_UNKNOWN, Answer, of_error, of_performed
from oncebox.perform.flight import Flight, Waiters
from oncebox.perform.operation import Operation, Operations
from oncebox.perform.outcome import Outcome, failed, undecided
from oncebox.perform.request import Request
from oncebox.perform.signature import BLOCKING
from oncebox.perform.work import Work, report
from oncebox.seldom import Seldom
from oncebox.store import DONE, UNKNOWN, Ended, Store

DAY = 86_400.0
KEEP = 30 * DAY
PAUSE = 1.0
CARE = 60.0
# What cancelled work gets to clean up.
LAST_MOMENT = 1.0

log = logging.getLogger("oncebox.perform")


class Performer:
    """`open` it, have `run` run, then `perform`; `stop` before `run` is cancelled.

    `keep` is for how many seconds replies are kept, at least a day; it may be exchanged. While `in_doubt` says that the
    clock is, nothing expires.
    """

    def __init__(
        self,
        operations: Operations,
        store: Store,
        *,
        now: Callable[[], int] = wall_clock,
        keep: float = KEEP,
        sync_timeout: float = 1.0,
        waiters: Waiters | None = None,
        in_doubt: Callable[[], bool] = lambda: False,
    ) -> None:
        self.operations = operations
        self.keep = keep
        self.waiters = waiters or Waiters()
        self._store, self._now, self._in_doubt = store, now, in_doubt
        self._work = {name: Work(one, store, now, sync_timeout=sync_timeout) for name, one in operations.items()}
        self._flights: dict[tuple[str, str], Flight] = {}
        self._running: Counter[str] = Counter()
        self._group: TaskGroup | None = None
        self._stopping = False
        self._faults = Seldom(log)
        self._empty = asyncio.Event()

    async def open(self) -> None:
        """What a dead process left running may run again where that is safe, else nobody knows how it ended."""
        retry_safe = [name for name, operation in self.operations.items() if operation.retry_safe]
        interrupted, unknown = await self._store.operations.recover(retry_safe, self._now())
        if unknown:
            log.error(
                "operations unknown=%d: they were running when the process ended; a person has to decide", unknown
            )
        if interrupted:
            log.warning("operations interrupted=%d: they run again when they are sent again", interrupted)

    async def run(self) -> None:
        """Own what runs and remove what is too old, until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            while True:
                await anyio.sleep(CARE)
                await self.expire()

    async def stop(self, grace: float) -> None:
        """Take no new calls, wait for those that run; what has not ended by then is cancelled and ends as unknown."""
        self._stopping = True
        with anyio.move_on_after(grace):
            await self.idle()
        for flight in self._flights.values():
            if flight.task is not None:
                flight.task.cancel()
        with anyio.move_on_after(LAST_MOMENT):
            await self.idle()

    async def expire(self) -> None:
        """Remove all replies that have been kept long enough, a few at a time."""
        before = self._expired(self._now())
        try:
            while before and await self._store.operations.expire(before):
                pass
        except StoreError as error:
            log.warning("old replies stay for now: %s", error)

    async def perform(self, operation: Operation[..., object], request: Request, fingerprint: bytes) -> Answer:
        """Perform a call, or wait for the one that is performed now, or find the one that was."""
        key = (request.caller, request.key)
        while (flight := self._flights.get(key)) is not None:
            if flight.fingerprint == fingerprint:
                del request  # a twin's is never performed
                return await self.waiters.join(flight)
            answer = await self.waiters.judge(flight, len(request.body))
            if answer is not None:
                return answer
        try:
            flight = self._start(key, operation, request, fingerprint)
        except Overloaded as error:
            return of_error(error)
        del request
        return await asyncio.shield(flight.landed)

    def _start(
        self, key: tuple[str, str], operation: Operation[..., object], request: Request, fingerprint: bytes
    ) -> Flight:
        if self._stopping or self._group is None:
            raise Overloaded("the server is starting or stopping; send the same request again in a moment", 2)
        at = self._now()
        call = Call(
            caller=request.caller,
            key=request.key,
            operation=operation.name,
            fingerprint=fingerprint,
            at=at,
            expired=self._expired(at),
        )
        flight = Flight(fingerprint)
        work = self._work[operation.name]
        if operation.transactional:
            done = asyncio.ensure_future(
                self._store.operations.perform(call, work.in_transaction(request), len(request.body))
            )
            done.add_done_callback(partial(self._performed, key, flight))
        else:
            if self._running[operation.name] >= operation.concurrency:
                raise Overloaded(f"{operation.concurrency} calls of this operation run already; send it again", 1)
            self._running[operation.name] += 1
            self._group.start_soon(self._fly, key, flight, work, request, call)
        self._flights[key] = flight
        return flight

    def _performed(self, key: tuple[str, str], flight: Flight, done: asyncio.Future[Performed]) -> None:
        self._forget(key)
        if done.cancelled():
            flight.land(OUTCOME_UNKNOWN)
        elif (error := done.exception()) is not None:
            flight.land(of_error(error))
        else:
            flight.land(of_performed(done.result()))

    async def _fly(self, key: tuple[str, str], flight: Flight, work: Work, request: Request, call: Call) -> None:
        try:
            found = await self._store.operations.begin(call)
            if found.state == "new":
                flight.own()
                await self._attempt(flight, work, msgspec.structs.replace(request, attempt=found.attempt), call)
            else:
                flight.land(await self._found(call, found))
        except Exception as error:  # noqa: BLE001  # the key must not be held by a fault of ours
            flight.land(of_error(error))
        finally:
            self._running[work.operation.name] -= 1
            self._forget(key)
            flight.land(OUTCOME_UNKNOWN)

    async def _found(self, call: Call, found: Performed) -> Answer:
        """A call that is said to run, while nobody runs it: how it ended could not be written."""
        if found.state == "running":
            why = "how it ended could not be written"
            await self._store.operations.end(call, found.attempt, Ended(UNKNOWN, why=why), self._now())
            return OUTCOME_UNKNOWN
        return of_performed(found)

    async def _attempt(self, flight: Flight, work: Work, request: Request, call: Call) -> None:
        operation = work.operation
        flight.task = task = asyncio.create_task(work.outside(request), name=f"operation:{operation.name}")
        outcome = await self._in_time(task, operation)
        report(operation, request, outcome)
        if outcome.state != UNKNOWN and not task.done():
            # It goes on after its time was up: the key is free only when it has returned.
            flight.land(Answer(outcome.result))
            await asyncio.wait({task})
        flight.land(await self._write(flight, operation, request, call, outcome))
        if not task.done():
            await asyncio.wait({task})

    async def _in_time(self, task: asyncio.Task[Outcome], operation: Operation[..., object]) -> Outcome:
        try:
            done = await within(task, operation.timeout)
            if not done and operation.signature.kind != BLOCKING:
                task.cancel()
                await asyncio.wait({task}, timeout=LAST_MOMENT)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            return failed(operation, f"no reply after {operation.timeout:g} s", "timeout", 504)
        if task.cancelled():
            why = "the server stopped while it was running" if self._stopping else "it cancelled its own task"
            return failed(operation, why, "cancelled", 503)
        return task.result()

    async def _write(
        self, flight: Flight, operation: Operation[..., object], request: Request, call: Call, outcome: Outcome
    ) -> Answer:
        """Write how it ended, however long the file refuses; nothing is acknowledged before."""
        while True:
            ended = Ended(outcome.state, outcome.result if outcome.state == DONE else None, outcome.why)
            try:
                written = await self._store.operations.end(
                    call, request.attempt, ended, self._now(), outcome.staged, undecided(operation)
                )
            except Exception as error:  # noqa: BLE001  # the key must not be held by a reply that cannot be written
                if not isinstance(error, Overloaded) and outcome.state == DONE:
                    outcome = failed(operation, f"the reply cannot be kept: {error}", type(error).__name__)
                    report(operation, request, outcome)
                    continue
                told = f"operation not written operation={operation.name}: it is tried again ({error})"
                self._faults.say(time.monotonic(), operation.name, told)
                flight.land(of_error(error))
                await anyio.sleep(PAUSE)
                continue
            if written is None:
                return OUTCOME_UNKNOWN
            if written.state != outcome.state:
                outcome = failed(operation, written.why, "staged")
                report(operation, request, outcome)
            return Answer(outcome.result, kept=outcome.state == DONE)

    def _forget(self, key: tuple[str, str]) -> None:
        self._flights.pop(key, None)
        if not self._flights:
            self._empty.set()

    async def idle(self) -> None:
        """Until nothing runs."""
        while self._flights:
            self._empty.clear()
            await self._empty.wait()

    def _expired(self, now: int) -> int:
        """What ended before then is forgotten; 0 while nothing is."""
        keep = max(self.keep, DAY) * MICROSECONDS
        return 0 if self._in_doubt() or keep > now else now - int(keep)
