"""Routing: which deliveries an event gets when it is written, and which of them must wait for their turn."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from oncebox.model import Arrival, Planned
from oncebox.route import Router
from oncebox.store.statement import own

UNFINISHED = own(
    "select exists (select 1 from deliveries where target = ? and order_key = ? and order_key is not null "
    "and state <> 'done' and state <> ?)"
)


def nowhere(_arrival: Arrival) -> Sequence[Planned]:
    """The router of an inbox without routes."""
    return ()


class Routing:
    """The routes in force, the names that handlers may emit into, the sources whose repeats do not revive
    what is dead, the targets whose order goes on past a dead delivery. All may be exchanged while running, but for the
    targets that there are; None: that is not known."""

    def __init__(
        self,
        router: Router = nowhere,
        internal: frozenset[str] = frozenset(),
        keeps_dead: frozenset[str] = frozenset(),
        skipping: frozenset[str] = frozenset(),
        targets: frozenset[str] | None = None,
    ) -> None:
        self.router = router
        self.internal = internal
        self.keeps_dead = keeps_dead
        self.skipping = skipping
        self._targets = targets

    def exists(self, target: str) -> bool:
        """Whether deliveries to it can be made; what is queued for any other waits for ever."""
        return self._targets is None or target in self._targets

    def place(self, db: sqlite3.Connection, plan: Planned) -> str:
        """`pending` if the key has nothing unfinished at its target, else `parked` behind it."""
        if plan.order_key is None:
            return "pending"
        passed = "dead" if plan.target in self.skipping else "done"
        (waits,) = db.execute(UNFINISHED, (plan.target, plan.order_key, passed)).fetchone()
        return "parked" if waits else "pending"
