"""Seldom: lines of the log that anybody outside can cause, or a fault that lasts. Pure."""

from __future__ import annotations

import logging

from oncebox.errors import OnceboxError

QUIET = 10.0
# What kinds are called may come from anybody's code; beyond so many at a time all others are one.
KINDS = 32
OTHERS = "others"


class Seldom:
    """One line of each kind at most every so many seconds, with how often the same was true since the one before."""

    def __init__(self, log: logging.Logger, level: int = logging.ERROR, *, seconds: float = QUIET) -> None:
        self._log, self._level, self._seconds = log, level, seconds
        self._kinds: dict[str, tuple[int, float]] = {}

    def say(self, now: float, kind: str, line: str, error: BaseException | None = None) -> None:
        """It is true once more; `now` is monotonic. With an error its traceback is told, too; one of ours says all
        that there is to say in its own words."""
        if kind not in self._kinds and not self._has_room(now):
            kind = OTHERS
        untold, again_at = self._kinds.get(kind, (0, now))
        if now < again_at:
            self._kinds[kind] = untold + 1, again_at
            return
        self._kinds[kind] = 0, now + self._seconds
        more = f" ({untold} more of this kind since it was last told)" if untold else ""
        if isinstance(error, OnceboxError):
            self._log.log(self._level, "%s: %s%s", line, error, more)
        else:
            self._log.log(self._level, "%s%s", line, more, exc_info=error)

    def _has_room(self, now: float) -> bool:
        """Whether one more kind can be told apart; those whose time is over are forgotten for it."""
        if len(self._kinds) >= KINDS:
            kinds = self._kinds.copy()  # another thread may add one meanwhile
            self._kinds = {kind: told for kind, told in kinds.items() if now < told[1] or kind == OTHERS}
        return len(self._kinds) < KINDS


def kind_of(error: BaseException) -> str:
    """What errors have in common that come of the same fault: what they are, and where they were raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__} {place}"
