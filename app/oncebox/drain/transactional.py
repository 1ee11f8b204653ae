"""Transactional handlers: run and judged on the writer's thread, inside its transaction."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from oncebox.drain.handler import Handler
from oncebox.drain.verdict import Verdict, of_error, of_result, of_timeout, settled
from oncebox.model import Claimed, Settled
from oncebox.seldom import Seldom
from oncebox.store import Transaction

SLOW = 0.05
# The store began to count a moment earlier.
MARGIN = 0.005
OVERRUNS = 3
OVERRUN_WINDOW = 3600.0

log = logging.getLogger("oncebox.drain")


class TransactionalRunner:
    """The store's Runner for Python handlers: one at a time, each held to `sync_timeout` seconds."""

    def __init__(
        self,
        handlers: Sequence[Handler[..., Any]],
        now: Callable[[], int],
        *,
        sync_timeout: float = 1.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.names = tuple(handler.name for handler in handlers)
        self._handlers = {handler.name: handler for handler in handlers}
        self._now = now
        self._jitter = jitter
        self._sync_timeout = sync_timeout
        self._overruns: dict[str, deque[float]] = {}
        self._slow = Seldom(log, logging.WARNING)

    def run(self, claimed: Claimed, db: Transaction) -> Settled:
        """Run the handler and judge how it ended. Never raises for a fault of the handler's."""
        started_at, begin = self._now(), time.monotonic()
        try:
            verdict = of_result(self._handlers[claimed.target].function(claimed.event, db))
        except BaseException as error:  # noqa: BLE001  # SystemExit would end the writer's thread
            verdict = of_error(error, rerun=claimed.run > 1)
        took = time.monotonic() - begin
        if took >= self._sync_timeout - MARGIN:
            verdict = of_timeout(self._sync_timeout)
            self._overruns.setdefault(claimed.target, deque(maxlen=OVERRUNS)).append(begin)
        if took > SLOW:
            self._warn(claimed, took)
        return self._settled(claimed, verdict, started_at, round(took * 1_000_000))

    def failed(self, claimed: Claimed, outcome: str, why: str, started_at: int, duration: int) -> Settled:
        """Judge an attempt whose transaction did not survive its handler."""
        return self._settled(claimed, Verdict(outcome=outcome, error=why, reason="transaction"), started_at, duration)

    def to_pause(self) -> list[str]:
        """The handlers that have overrun too often lately; each is named once."""
        since = time.monotonic() - OVERRUN_WINDOW
        names = [name for name, begun in self._overruns.items() if sum(at >= since for at in begun) >= OVERRUNS]
        for name in names:
            del self._overruns[name]
        return names

    def why_paused(self) -> str:
        """The reason to give for a pause."""
        return (
            f"{OVERRUNS} attempts of this transactional handler took {self._sync_timeout:g} s or longer, and every "
            "accept waits meanwhile; make it quick, or write it as `def f(event)` or `async def f(event)`, then resume"
        )

    def _settled(self, claimed: Claimed, verdict: Verdict, started_at: int, duration: int) -> Settled:
        return settled(
            claimed,
            verdict,
            self._handlers[claimed.target].retry,
            started_at=started_at,
            duration=duration,
            now=self._now(),
            jitter=self._jitter(),
        )

    def _warn(self, claimed: Claimed, took: float) -> None:
        what = f"target={claimed.target} seq={claimed.event.seq} ms={took * 1000:.0f}"
        self._slow.say(time.monotonic(), claimed.target, f"slow transactional handler {what}: accepts wait for it")
