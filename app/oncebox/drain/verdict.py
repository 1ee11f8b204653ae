"""Verdict: how an attempt ended, read from what the handler returned or raised. Pure."""

from __future__ import annotations

import inspect
import os
import traceback
from pathlib import Path
from types import TracebackType

import msgspec

from oncebox.drain.retry import RetryPolicy, next_step, span
from oncebox.errors import Dead, EmitError, Retry
from oncebox.model import Claimed, Settled, StagedWrites

ERROR_BYTES = 4096
UNSHOWN = "(it cannot be shown)"
OURS = f"{Path(__file__).parent.parent}{os.sep}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended. `error` is for people with a token, `reason` (never data) is for the log.

    `after` are the seconds that the other side asked for; `dead` says that trying again is of no use; `down` that it
    looks as if the target were down. One that does not count leaves the delivery's tries as they were.
    """

    outcome: str
    error: str | None = None
    reason: str = ""
    after: float | None = None
    dead: bool = False
    down: bool = False
    counts: bool = True
    staged: StagedWrites | None = None


OK = Verdict(outcome="ok")


def of_result(result: object) -> Verdict:
    """The verdict on a handler that returned. Something that should have been awaited has done nothing."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return Verdict(
            outcome="error", error="the handler returned a generator, of which nothing has run", reason="generator"
        )
    if not inspect.isawaitable(result):
        return OK
    if inspect.iscoroutine(result):
        result.close()
    why = "the handler returned something to await; write it as `async def`, or run it to its end"
    return Verdict(outcome="error", error=why, reason="awaitable")


def of_error(error: BaseException, *, rerun: bool = False) -> Verdict:
    """The verdict on a handler that raised. A broken constraint in a rerun would break again, so it is dead at once.
    Never raises: whatever an error does when it is looked at, the attempt has an outcome."""
    try:
        return _judged(error, rerun)
    except Exception:  # noqa: BLE001  # see above
        return Verdict(outcome="error", error=f"an error that {UNSHOWN}", reason="unshown")


def _judged(error: BaseException, rerun: bool) -> Verdict:
    cause = _single(error)
    name = type(cause).__name__
    if isinstance(cause, Dead):
        return Verdict(outcome="refused", error=bounded(f"Dead: {_text(cause.why)}"), reason=name, dead=True)
    if isinstance(cause, Retry):
        return _asked_for_later(cause)
    hopeless = isinstance(cause, EmitError) and _text(cause).startswith("emit loop")
    hopeless = hopeless or (rerun and name == "IntegrityError")
    return Verdict(outcome="error", error=described(error), reason=name, dead=hopeless)


def of_timeout(seconds: float) -> Verdict:
    """The verdict on an attempt that took longer than it may."""
    return Verdict(outcome="timeout", error=f"the attempt took longer than {seconds:g} s", reason="timeout", down=True)


def settled(
    claimed: Claimed,
    verdict: Verdict,
    policy: RetryPolicy,
    *,
    started_at: int,
    duration: int,
    now: int,
    jitter: float,
) -> Settled:
    """What is written down of an attempt: its verdict, and the state that follows from it."""
    since = round(claimed.event.received_at.timestamp() * 1_000_000)
    step = next_step(
        policy,
        verdict.outcome,
        claimed.failures,
        now,
        jitter,
        after=verdict.after,
        dead=verdict.dead,
        since=since,
        counts=verdict.counts,
        tries=claimed.attempt,
    )
    return Settled(
        seq=claimed.event.seq,
        target=claimed.target,
        run=claimed.run,
        attempt=claimed.attempt,
        state=step.state,
        outcome=verdict.outcome,
        started_at=started_at,
        duration=duration,
        now=now,
        due=step.due,
        failures=step.failures,
        error=None if verdict.error is None else bounded(verdict.error),
    )


def described(error: BaseException) -> str:
    """An error for a person: what it was on the first line, then where, without our own frames."""
    try:
        what = traceback.format_exception_only(error)[-1].strip()
        where = "".join(traceback.format_exception(type(error), error, _their_frames(error)))
    except Exception:  # noqa: BLE001  # an error that cannot even be shown is still an error
        return f"{type(error).__name__}: {UNSHOWN}"
    return bounded(f"{bounded(what, ERROR_BYTES // 4)}\n\n{where}")


def bounded(text: str, limit: int = ERROR_BYTES) -> str:
    """Text that any database takes, of at most `limit` bytes: first line and end are kept, the middle goes."""
    if len(text) > 4 * limit:  # before anything that takes as long as the text is
        text = f"{text[: 2 * limit]}\n{text[-2 * limit :]}"
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text.encode()) <= limit:
        return text
    first = text.split("\n", 1)[0].encode()[: limit // 2]
    rest = text.encode()[-(limit - len(first) - 5) :]
    return f"{first.decode(errors='ignore')}\n…\n{rest.decode(errors='ignore')}"


def _single(error: BaseException) -> BaseException:
    """What a task group raised for one reason only is that reason."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _text(value: object) -> str:
    """Whatever it is, as text: what a handler raises may be of its own making."""
    try:
        return str(value)
    except BaseException:  # noqa: BLE001  # even one that would end the process
        return UNSHOWN


def _asked_for_later(error: Retry) -> Verdict:
    text = f"Retry: {_text(error.why)}"
    after = None
    if error.after is not None:
        try:
            after = span(error.after)
        except Exception as fault:  # noqa: BLE001  # it may be anything
            text = f"{text} (after is not understood: {_text(fault)})"
    return Verdict(outcome="error", error=bounded(text), reason="Retry", after=after)


def _their_frames(error: BaseException) -> TracebackType | None:
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(OURS):
        frames = frames.tb_next
    return frames
