"""Routing: which deliveries an event gets when it is written, and which of them must wait for their turn."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from oncebox.model import Arrival, Planned
from oncebox.store.statement import own

UNFINISHED = own(
    "select exists (select 1 from deliveries where target = ? and order_key = ? and order_key is not null "
    "and state <> 'done')"
)

Router = Callable[[Arrival], Sequence[Planned]]


def nowhere(_arrival: Arrival) -> Sequence[Planned]:
    """The router of an inbox without routes."""
    return ()


class Routing:
    """The routes in force, and the names that handlers may emit into. Both may be exchanged while running."""

    def __init__(self, router: Router = nowhere, internal: frozenset[str] = frozenset()) -> None:
        self.router = router
        self.internal = internal

    def place(self, db: sqlite3.Connection, plan: Planned) -> str:
        """`pending` if the key has nothing unfinished at its target, else `parked` behind it."""
        if plan.order_key is None:
            return "pending"
        (waits,) = db.execute(UNFINISHED, (plan.target, plan.order_key)).fetchone()
        return "parked" if waits else "pending"
