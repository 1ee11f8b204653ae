"""Targets: what the drain asks of anything that takes deliveries; blocking and async handlers are such."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from anyio import CapacityLimiter, to_thread

from oncebox.drain.handler import BLOCKING, STAGED, Handler
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.verdict import OK, Verdict, of_error, of_result
from oncebox.model import Claimed
from oncebox.store import Store
from oncebox.store.staging import StagedTransaction


class Target(Protocol):
    """Where deliveries go. `in_process`: it could take the process with it, so its suspects run alone.

    `stoppable`: cancelling `deliver` ends the work. One that is not is left to end by itself. `keeps_time`: it ends by
    its timeout by itself, and at once when it is cancelled.
    """

    @property
    def name(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def rate(self) -> float | None: ...
    @property
    def retry(self) -> RetryPolicy: ...
    @property
    def in_process(self) -> bool: ...
    @property
    def stoppable(self) -> bool: ...
    @property
    def keeps_time(self) -> bool: ...

    async def deliver(self, claimed: Claimed) -> Verdict:
        """Do it, and judge how it ended. Raises only CancelledError."""
        ...


class HandlerTarget:
    """A blocking or async handler as a target."""

    in_process = True
    keeps_time = False

    def __init__(self, handler: Handler[..., Any], store: Store, now: Callable[[], int]) -> None:
        self.name = handler.name
        self.concurrency = handler.concurrency
        self.timeout = handler.timeout
        self.rate = handler.rate
        self.retry = handler.retry
        # A thread cannot be stopped from outside.
        self.stoppable = handler.kind != BLOCKING
        self._function = handler.function
        self._kind = handler.kind
        self._store = store
        self._now = now
        self._limiter = CapacityLimiter(handler.concurrency)

    async def deliver(self, claimed: Claimed) -> Verdict:
        """Run the handler. Nothing that it raises, SystemExit included, gets past here."""
        try:
            return await self._run(claimed)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return of_error(error)
        except BaseException as error:  # noqa: BLE001  # a handler must not be able to end the drain
            return of_error(error, rerun=claimed.run > 1)

    async def _run(self, claimed: Claimed) -> Verdict:
        if self._kind == STAGED:
            return await self._run_staged(claimed)
        if self._kind == BLOCKING:
            # The limit is as wide as the slots: a thread that never returns takes one of each.
            return await to_thread.run_sync(self._call, claimed, abandon_on_cancel=True, limiter=self._limiter)
        return of_result(await self._function(claimed.event))

    def _call(self, claimed: Claimed) -> Verdict:
        try:
            return of_result(self._function(claimed.event))
        except BaseException as error:  # noqa: BLE001  # SystemExit would end the worker thread
            return of_error(error, rerun=claimed.run > 1)

    async def _run_staged(self, claimed: Claimed) -> Verdict:
        db = StagedTransaction(parent=claimed.event.seq, read=self._store.read, now=self._now)
        try:
            verdict = of_result(await self._function(claimed.event, db))
        finally:
            staged = db.end()
        return Verdict(outcome="ok", staged=staged) if verdict is OK else verdict
