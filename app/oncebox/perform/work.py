"""Work: one attempt of a call, in the writer or in a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec
from anyio import CapacityLimiter, to_thread

from oncebox.model import Result
from oncebox.perform.operation import Operation
from oncebox.perform.outcome import Outcome, body_of, failed, raised, returned
from oncebox.perform.reply import dropped
from oncebox.perform.request import Request
from oncebox.perform.signature import BLOCKING, STAGED
from oncebox.seldom import Seldom
from oncebox.store import DONE, Perform, Store, Transaction
from oncebox.store.staging import StagedTransaction

SLOW = 0.05
# The store began to count a moment earlier.
MARGIN = 0.005

log = logging.getLogger("oncebox.perform")
# Callers may send as many that fail as they like.
failures = Seldom(log)


class Work:
    """What one operation does for a call."""

    def __init__(
        self, operation: Operation[..., Any], store: Store, now: Callable[[], int], *, sync_timeout: float
    ) -> None:
        self.operation = operation
        self._store = store
        self._now = now
        self._sync_timeout = sync_timeout
        # As wide as what is let in: a thread that never returns takes one of each.
        self._limiter = CapacityLimiter(operation.concurrency)
        self._slow = Seldom(log, logging.WARNING)
        self._told_dropped = False

    def in_transaction(self, request: Request) -> Perform:
        """The call as the writer performs it. Nothing that the function raises gets past here."""

        def perform(db: Transaction, attempt: int) -> tuple[Result, bool]:
            begin = time.monotonic()
            outcome = self._call(request, attempt, db)
            took = time.monotonic() - begin
            if took >= self._sync_timeout - MARGIN:
                outcome = failed(self.operation, f"it took {self._sync_timeout:g} s or longer", "timeout", 504)
            if took > SLOW:
                self._warn(took)
            report(self.operation, request, outcome)
            return outcome.result, outcome.state == DONE

        return perform

    async def outside(self, request: Request) -> Outcome:
        """The call as a task. Raises only CancelledError, when the task is cancelled."""
        try:
            if self.operation.signature.kind == BLOCKING:
                call = self._call
                return await to_thread.run_sync(
                    call, request, request.attempt, None, abandon_on_cancel=True, limiter=self._limiter
                )
            return await self._awaited(request)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return raised(self.operation, error)
        except BaseException as error:  # noqa: BLE001  # SystemExit would end the whole loop
            return raised(self.operation, error)

    async def _awaited(self, request: Request) -> Outcome:
        db = StagedTransaction(parent=None, read=self._store.read, now=self._now)
        try:
            body = body_of(self.operation, request)
            outcome = self._returned(
                await self.operation.function(*self.operation.signature.arguments(request, body, db))
            )
        finally:
            staged = db.end()
        if outcome.state != DONE or self.operation.signature.kind != STAGED:
            return outcome
        return msgspec.structs.replace(outcome, staged=staged)

    def _call(self, request: Request, attempt: int, db: Transaction | None) -> Outcome:
        if attempt != request.attempt:
            request = msgspec.structs.replace(request, attempt=attempt)
        try:
            body = body_of(self.operation, request)
            return self._returned(self.operation.function(*self.operation.signature.arguments(request, body, db)))
        except BaseException as error:  # noqa: BLE001  # SystemExit would end the thread
            return raised(self.operation, error)

    def _returned(self, reply: object) -> Outcome:
        outcome = returned(self.operation, reply)
        lost = dropped(reply)
        if lost and not self._told_dropped:
            self._told_dropped = True
            log.warning(
                "headers not sent operation=%s names=%s: they are not kept with a reply, so a repeat would lack them",
                self.operation.name,
                ",".join(lost),
            )
        return outcome

    def _warn(self, took: float) -> None:
        line = f"slow operation={self.operation.name} ms={took * 1000:.0f}: accepts wait for it"
        self._slow.say(time.monotonic(), "slow", line)


def report(operation: Operation[..., Any], request: Request, outcome: Outcome) -> None:
    """A line for what failed. What an error says may quote a body, so only its kind and place are told."""
    if outcome.reason:
        key = {"": "free", "failed": "free"}.get(outcome.state, outcome.state)
        failures.say(
            time.monotonic(),
            f"{operation.name} {outcome.reason}",
            f"operation failed operation={operation.name} caller={request.caller or '-'} attempt={request.attempt} "
            f"key={key} reason={outcome.reason}",
        )
