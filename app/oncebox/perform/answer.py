"""Answer: what a caller is told."""

from __future__ import annotations

import msgspec

from oncebox.errors import Overloaded, Rejected, StorageFull
from oncebox.model import Performed, Result
from oncebox.perform.reply import of_problem

RETRY_AFTER = (("retry-after", "2"),)


class Answer(msgspec.Struct, frozen=True):
    """A result, whether it is kept, and whether it is a repeat of what was answered before."""

    result: Result
    kept: bool = False
    replayed: bool = False

    def again(self) -> Answer:
        """What a twin is told that has waited for it."""
        return Answer(self.result, self.kept, self.kept)


CONFLICT = Answer(
    of_problem(
        422,
        "key-conflict",
        "this Idempotency-Key was used before with another method, path, query or body; a new request needs a new key",
    )
)
IN_PROGRESS = Answer(
    of_problem(
        409,
        "in-progress",
        "the first request with this Idempotency-Key is still running; send the same request again in a moment",
        RETRY_AFTER,
    )
)
OUTCOME_UNKNOWN = Answer(
    of_problem(
        409,
        "outcome-unknown",
        "an earlier request with this Idempotency-Key was started; nobody knows how it ended, a person must decide",
    )
)
_BROKEN = of_problem(500, "", "the operation failed and nothing of it was kept; the same request may be sent again")


def of_performed(performed: Performed) -> Answer:
    """What the store says of a call that does not start now, or has ended."""
    if performed.result is not None:
        kept = performed.state in ("done", "replayed")
        return Answer(performed.result, kept, performed.state == "replayed")
    return {"conflict": CONFLICT, "running": IN_PROGRESS}.get(performed.state, OUTCOME_UNKNOWN)


def of_error(error: BaseException) -> Answer:
    """What the store has raised, or a refusal of ours."""
    if isinstance(error, Rejected):
        return Answer(of_problem(error.status, error.slug, error.detail, error.headers))
    if isinstance(error, Overloaded):
        slug = "storage-full" if isinstance(error, StorageFull) else "overloaded"
        return Answer(of_problem(503, slug, str(error), (("retry-after", str(error.retry_after)),)))
    return Answer(_BROKEN)
