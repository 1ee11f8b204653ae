"""Drain: claims what is due, has it delivered, settles how it ended; woken, never polling."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType

import anyio

from oncebox.clock import wall_clock
from oncebox.condition import Condition
from oncebox.drain.handler import TRANSACTIONAL
from oncebox.drain.lane import Lane
from oncebox.drain.load import Handlers
from oncebox.drain.shared import Loop, Reach, Rest, Shared
from oncebox.drain.slicing import Slicing
from oncebox.drain.suspects import Suspects
from oncebox.drain.target import HandlerTarget, Target
from oncebox.drain.transactional import TransactionalRunner
from oncebox.errors import HandlerError
from oncebox.recent import Recent
from oncebox.seldom import Seldom
from oncebox.store import Store

# What a cancelled handler gets to clean up when the process stops.
LAST_MOMENT = 1.0
TROUBLED_REST = 1.0
ANY: Reach = MappingProxyType({})

log = logging.getLogger("oncebox.drain")


async def set_up(store: Store, handlers: Handlers, now: Callable[[], int] = wall_clock) -> None:
    """Run the set-ups, each in one transaction without a deadline. Raises HandlerError with the one that failed."""
    for one in handlers.setups:
        try:
            await store.write(one.function, now(), within=math.inf)
        except Exception as error:
            raise HandlerError(f"the setup at {one.place} failed: {type(error).__name__}: {error}") from error


class Drain:
    """Everything that happens to stored events. `targets` are those that are not Python handlers; `reach` says which
    sources a target's events come from (any, where it says nothing): one that nobody else shares has all its slots."""

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        *,
        targets: Sequence[Target] = (),
        now: Callable[[], int] = wall_clock,
        sync_timeout: float = 1.0,
        jitter: Callable[[], float] = random.random,
        reach: Reach = ANY,
    ) -> None:
        transactional = [h for h in handlers.handlers if h.kind == TRANSACTIONAL]
        others = [HandlerTarget(h, store, now) for h in handlers.handlers if h.kind != TRANSACTIONAL]
        self._shared = shared = Shared(store, now, jitter, reach)
        self._slicing = Slicing(
            TransactionalRunner(transactional, now, sync_timeout=sync_timeout, jitter=jitter), shared
        )
        self._lanes = {target.name: Lane(target, shared) for target in [*others, *targets]}
        self._suspects = Suspects(handlers.names, self._lanes, self._slicing, shared)
        self._loops: dict[str, Loop] = {"suspects": self._suspects}
        if self._slicing.names:
            self._loops["transactional handlers"] = self._slicing
        self._loops |= {f"target {name}": lane for name, lane in self._lanes.items()}
        self._faults = Seldom(log)
        self._trouble: dict[str, str] = {}
        self._running = 0
        self._grace = 0.0
        self._stop_asked = anyio.Event()
        self._finished = anyio.Event()

    async def run(self) -> None:
        """Serve until `stop`, or until cancelled; then wind down."""
        try:
            async with anyio.create_task_group() as group:
                self._shared.group = group
                try:
                    for name, loop in self._loops.items():
                        self._running += 1
                        group.start_soon(self._forever, name, loop)
                    await self._stop_asked.wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._wind_down()
                    group.cancel_scope.cancel()
        finally:
            self._finished.set()

    async def stop(self, grace: float = 20.0) -> None:
        """Claim nothing more, let attempts end for `grace` seconds, give the rest back uncounted."""
        self._grace = grace
        self._stop_asked.set()
        await self._finished.wait()

    def wake(self, targets: Iterable[str] | None = None) -> None:
        """Deliveries of these targets (None: of any) are new or due. A name that nobody has changes nothing."""
        for name in [*self._lanes, *self._slicing.names] if targets is None else targets:
            if name in self._lanes:
                self._lanes[name].bell.ring()
            elif name in self._slicing.names:
                self._slicing.bell.ring()

    def reached(self, reach: Reach) -> None:
        """From now on the events of targets come from these sources."""
        self._shared.reach = reach

    async def idle(self) -> None:
        """Until nothing is due and nothing runs."""
        await self._shared.pulse.until(self._is_idle)

    def alive(self) -> bool:
        """All loops run, and the last turn of each succeeded."""
        return not (self._trouble or self._shared.stopping) and self._running == len(self._loops)

    def trouble(self) -> list[str]:
        """What readiness should say: loops that fail, targets that are stuck; empty when all is well."""
        reasons = [f"drain: {name} fails: {why}" for name, why in self._trouble.items()]
        if not reasons and not self.alive():
            reasons = ["drain: not running"]
        return reasons + [f"target {name} is stuck: none of its handlers returns" for name in self.stuck()]

    def stuck(self) -> list[str]:
        """Targets whose every slot is held by an attempt that goes on after its time."""
        return [name for name, lane in self._lanes.items() if lane.stuck]

    def down(self) -> list[str]:
        """Targets that are thought to be down: nothing but probes goes out to them."""
        return [name for name, lane in self._lanes.items() if lane.down]

    def conditions(self) -> dict[str, Condition]:
        """How each target fares that is not a transactional handler."""
        return {name: lane.condition() for name, lane in self._lanes.items()}

    @property
    def recent(self) -> Recent:
        """The events of which a delivery has begun or ended lately."""
        return self._shared.recent

    def _is_idle(self) -> bool:
        quiet = self._suspects.resting and self._slicing.resting and not self._shared.attempts
        return quiet and all(lane.resting for lane in self._lanes.values())

    async def _forever(self, name: str, loop: Loop) -> None:
        """Nothing that a turn raises ends its loop."""
        try:
            while not self._shared.stopping:
                try:
                    rest = await loop.turn()
                except Exception as error:  # noqa: BLE001  # logged below; a drain that ends helps nobody
                    await self._recover_from(error, name)
                    continue
                self._trouble.pop(name, None)
                if rest is not None:
                    await self._rest(loop, rest)
        finally:
            self._running -= 1
            self._shared.pulse.beat()

    async def _recover_from(self, error: Exception, name: str) -> None:
        self._trouble[name] = f"{type(error).__name__}: {error}"
        self._faults.say(time.monotonic(), name, f"drain failed loop={name}; it goes on in a second", error)
        with anyio.move_on_after(TROUBLED_REST):
            await self._stop_asked.wait()

    async def _rest(self, loop: Loop, rest: Rest) -> None:
        loop.asleep = rest.quiet
        self._shared.pulse.beat()
        try:
            if not self._shared.stopping:
                await loop.bell.wait(rest.seconds)
        finally:
            loop.asleep = False

    async def _wind_down(self) -> None:
        shared = self._shared
        shared.stopping = True
        shared.suspect_bell.ring()
        self.wake()
        with anyio.move_on_after(self._grace):
            await shared.pulse.until(self._has_ended)
        for attempt in list(shared.attempts):
            attempt.stop()
        with anyio.move_on_after(LAST_MOMENT):
            await shared.pulse.until(lambda: not shared.attempts)
        left = list(shared.attempts)
        with anyio.move_on_after(LAST_MOMENT):
            for lane in self._lanes.values():
                await lane.give_back()
            await shared.ledger.release([attempt.claimed for attempt in left if attempt.working])
            await shared.ledger.insist("release_held", lambda: shared.store.release_held(shared.now()))
        for attempt in left:
            log.warning("stopped over a handler that goes on target=%s", attempt.target.name)
            attempt.abandon()

    def _has_ended(self) -> bool:
        return self._running == 0 and not self._shared.attempts
