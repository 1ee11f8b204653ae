"""Slots: who holds the slots of one target, and what is claimed and waits for one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from oncebox.drain.room import HISTORY, Room
from oncebox.model import Claimed

# An attempt that has used so much of its timeout is a sign that its source may hang.
LATE = 0.5


class Slots:
    """The sources take turns, new events before reruns; none gets more than `Room` leaves it."""

    def __init__(self, slots: int, timeout: float, reach: Callable[[], Collection[str] | None]) -> None:
        self.busy = 0
        self.stuck = 0
        self.waiting = 0
        # Bytes of the bodies that wait.
        self.weight = 0
        self._slots = slots
        self._late = timeout * LATE
        self._reach = reach
        self._held: dict[str, int] = {}
        self._prompt: frozenset[str] = frozenset()
        self._queues: dict[str, deque[Claimed]] = {}
        # When the first of a queue last changed (monotonic seconds).
        self._moved: dict[str, float] = {}
        self._turn: deque[str] = deque()

    @property
    def free(self) -> int:
        """Slots that nobody holds; less than none while suspects run beside the others."""
        return self._slots - self.busy

    def room(self, ahead: int = 0) -> Room:
        """What each source may have now; it does not change with the slots."""
        return self._room(dict(self._held), ahead)

    def idle(self, now: float, seconds: float) -> list[str]:
        """The queues of which nothing could start for so long."""
        return [party for party, moved in self._moved.items() if now - moved >= seconds]

    def still(self, now: float, seconds: float) -> int:
        """How many wait in queues of which nothing could start for so long."""
        return sum(len(self._queues[party]) for party in self.idle(now, seconds))

    def hold(self, claimed: Claimed) -> None:
        """An attempt takes a slot, whether one is free or not."""
        party = _party(claimed)
        self.busy += 1
        self._held[party] = self._held.get(party, 0) + 1

    def leave(self, claimed: Claimed, took: float) -> None:
        """The attempt does not need its slot any more; it took so many seconds."""
        party = _party(claimed)
        self.busy -= 1
        if self._held[party] == 1:
            del self._held[party]
        else:
            self._held[party] -= 1
        if (took < self._late) != (party in self._prompt):
            self._prompt = self._prompt ^ {party}

    def put(self, claimed: Iterable[Claimed]) -> None:
        """They are claimed, and wait."""
        for one in claimed:
            party = _party(one)
            if party not in self._queues:
                self._queues[party] = deque()
                self._moved[party] = time.monotonic()
                self._turn.append(party)
            self._queues[party].append(one)
            self.waiting += 1
            self.weight += one.weight

    def next(self) -> Claimed | None:
        """The next that may start now."""
        if not self.waiting or self.free <= 0:
            return None
        room = self._room(self._held)
        for _ in range(len(self._turn)):
            party = self._turn[0]
            self._turn.rotate(-1)
            if party != HISTORY and room.starts(party) > 0:
                return self._take(party)
        return self._take(HISTORY) if HISTORY in self._queues and room.starts(HISTORY) > 0 else None

    def clear(self) -> list[Claimed]:
        """Nothing waits any more; what did."""
        return self._drop(list(self._queues))

    def clear_idle(self, now: float, seconds: float) -> list[Claimed]:
        """Nothing of what could not start for so long waits any more; what did. It may well hang."""
        idle = self.idle(now, seconds)
        self._prompt = self._prompt.difference(idle)
        return self._drop(idle)

    def _room(self, held: Mapping[str, int], ahead: int = 0) -> Room:
        return Room(self._slots, self.free, held, self._prompt, self._reach(), ahead)

    def _drop(self, parties: Iterable[str]) -> list[Claimed]:
        dropped: list[Claimed] = []
        for party in parties:
            dropped += self._queues[party]
            self._end(party)
        self.waiting -= len(dropped)
        self.weight -= sum(one.weight for one in dropped)
        return dropped

    def _take(self, party: str) -> Claimed:
        queue = self._queues[party]
        claimed = queue.popleft()
        self.waiting -= 1
        self.weight -= claimed.weight
        if queue:
            self._moved[party] = time.monotonic()
        else:
            self._end(party)
        return claimed

    def _end(self, party: str) -> None:
        del self._queues[party], self._moved[party]
        self._turn.remove(party)


def _party(claimed: Claimed) -> str:
    return HISTORY if claimed.history else claimed.event.source
