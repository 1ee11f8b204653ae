"""Seldom: lines of the log that anybody outside can cause. Pure."""

from __future__ import annotations

import logging

QUIET = 10.0
# What errors are called may come from anybody's code; beyond so many kinds all others are one.
KINDS = 32
OTHERS = "others"


class Seldom:
    """One line of each kind at most every ten seconds, with how often the same was true since the one before."""

    def __init__(self, log: logging.Logger, level: int = logging.ERROR) -> None:
        self._log, self._level = log, level
        self._kinds: dict[str, tuple[int, float]] = {}

    def say(self, now: float, kind: str, line: str, error: BaseException | None = None) -> None:
        """It is true once more; `now` is monotonic. With an error its traceback is told, too."""
        if kind not in self._kinds and len(self._kinds) >= KINDS:
            kind = OTHERS
        untold, again_at = self._kinds.get(kind, (0, now))
        if now < again_at:
            self._kinds[kind] = untold + 1, again_at
            return
        self._kinds[kind] = 0, now + QUIET
        more = f" ({untold} more of this kind since it was last told)" if untold else ""
        self._log.log(self._level, "%s%s", line, more, exc_info=error)


def kind_of(error: BaseException) -> str:
    """What errors have in common that come of the same fault: what they are, and where they were raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__} {place}"
