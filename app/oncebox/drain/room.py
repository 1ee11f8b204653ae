"""Room: how many of a target's slots each source may have, so that no source keeps the others waiting. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import msgspec

from oncebox.model import Claimed

# What a rerun has queued counts as one source, whatever its events came from. No source has this name.
HISTORY = ""
# For those that have none one slot in so many is kept, and at least one.
KEPT = 4


class Room(msgspec.Struct, frozen=True):
    """The slots of a target, how many are `free`, and how many each source has `held`; `ahead`: how many may be claimed
    in advance of a slot.

    `prompt` are the sources whose last attempt ended well before its timeout; any other may be about to hang, and so
    many slots with it. `reach` are the sources whose events come here; None: that is not known.
    """

    slots: int
    free: int
    held: Mapping[str, int] = {}
    prompt: frozenset[str] = frozenset()
    reach: Collection[str] | None = None
    ahead: int = 0

    def most(self, source: str, *, history: bool = False) -> int:
        """How many of its deliveries may be claimed now."""
        party = HISTORY if history else source
        return self.starts(party) + (self.ahead if party in self.prompt else 0)

    def starts(self, party: str) -> int:
        """How many more slots it may have now.

        Who has some leaves one to each that has none, up to a quarter of all; who may hang, as many as it has: then
        several that hang leave one, too. A rerun never has the last one, which is for new events.
        """
        if self.free <= 0:
            return 0
        lacking = self._lacking(party)
        if party == HISTORY:
            return self._of_history(lacking)
        if not lacking:
            return self.free
        mine = self.held.get(party, 0)
        return max(self._spare(party, mine, lacking), 0 if mine else 1)

    def took(self, source: str, count: int, *, history: bool = False) -> Room:
        """After so many of its deliveries were claimed."""
        party = HISTORY if history else source
        started = min(count, self.starts(party))
        held = {**self.held, party: self.held.get(party, 0) + started} if started else self.held
        ahead = max(0, self.ahead - (count - started))
        return msgspec.structs.replace(self, free=self.free - started, held=held, ahead=ahead)

    def after(self, claimed: Iterable[Claimed]) -> Room:
        """After these were claimed."""
        left = self
        for (source, history), count in Counter((one.event.source, one.history) for one in claimed).items():
            left = left.took(source, count, history=history)
        return left

    @property
    def tight(self) -> bool:
        """Some source of new events may have no more although there is room: what was not claimed may be due."""
        return any(self.most(source) == 0 for source in self.held if source != HISTORY)

    def _of_history(self, lacking: int) -> int:
        if self.slots == 1:
            return self.free
        mine = self.held.get(HISTORY, 0)
        return max(self._spare(HISTORY, mine, max(1, lacking)), 0 if mine or self.free == 1 else 1)

    def _spare(self, party: str, mine: int, lacking: int) -> int:
        return max(0, self.free - lacking if party in self.prompt else (self.free - mine) // 2)

    def _lacking(self, party: str) -> int:
        """How many others have no slot and may want one, as far as slots are kept for them."""
        most = max(1, self.slots // KEPT)
        if self.reach is None:
            return most
        lacking = 0
        for one in self.reach:
            if one != party and one not in self.held:
                lacking += 1
                if lacking == most:
                    break
        return lacking
