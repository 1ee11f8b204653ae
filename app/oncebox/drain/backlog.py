"""Backlog: while one goes out, oldest first, one slot in four is kept for what comes in. Pure."""

from __future__ import annotations

import msgspec

ONE_IN = 4


class Backlog(msgspec.Struct, frozen=True):
    """What is due from before `since` (unix microseconds; 0: there is none), and the slots given out meanwhile."""

    since: int = 0
    given: int = 0

    def kept(self, room: int) -> int:
        """How many of the next slots are for deliveries that are due only since then."""
        return (self.given + room) // ONE_IN - self.given // ONE_IN if self.since else 0

    def after(self, room: int, took: int) -> Backlog:
        """After a look for that many. One that finds less than there is room for has reached the end of it."""
        return NONE if took < room else msgspec.structs.replace(self, given=(self.given + took) % ONE_IN)


NONE = Backlog()
