"""Outcome: what a call comes to, by what its function returned or raised, and what becomes of its key."""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from pathlib import Path

import msgspec

from oncebox.duration import seconds
from oncebox.errors import Retry
from oncebox.model import Result, StagedWrites
from oncebox.perform.fingerprint import is_json
from oncebox.perform.operation import Operation
from oncebox.perform.reply import BadReply, Refuse, encode, is_decided, of_problem, refusal
from oncebox.perform.request import Request
from oncebox.store import DONE, FAILED, FREED, UNKNOWN

OURS = Path(__file__).parent.parent
LIBRARIES = frozenset(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
READING = frozenset(method.__code__ for method in (Request.text, Request.json, Request.decode))
# Python reads such an integer as it is set to, perhaps not at all; only at a run's beginning, for the time's sake.
LONG = re.compile(r"(?<![0-9])[0-9]{640}")
ERROR_BYTES = 4096
ROLLED_BACK = "the operation failed and nothing of it was kept; the same request may be sent again"
AGAIN = "the operation failed; the same request may be sent again"
LOST = "the operation failed, and it cannot be told what it has done before that; a person has to decide"


class Outcome(msgspec.Struct, frozen=True):
    """An answer and what becomes of the key: kept as done, free (remembered or not), or unknown.

    `why` is for people with a token, `reason` (never data) is for the log.
    """

    result: Result
    state: str
    why: str = ""
    reason: str = ""
    staged: StagedWrites | None = None


class BadBody(Exception):
    """The body is not what the operation takes; nothing has run yet."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def body_of(operation: Operation[..., object], request: Request) -> object:
    """The body as the operation takes it; None if it reads the request itself. Raises BadBody: also for one that says
    it is JSON and is none, where the operation would find out only after it has acted outside."""
    if operation.shape is None:
        if not operation.transactional and request.body and request.content_type and is_json(request.content_type):
            _refuse_unreadable(request)
        return None
    if not is_json(request.content_type):
        raise BadBody(415, "this operation takes JSON; send it with content-type: application/json")
    try:
        return msgspec.json.decode(request.body.removeprefix(b"\xef\xbb\xbf"), type=operation.shape)
    except msgspec.ValidationError as error:
        raise BadBody(422, f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(422, f"the body is no JSON: {error}") from None


def _refuse_unreadable(request: Request) -> None:
    try:
        _read(request)
    except (ValueError, LookupError, RecursionError) as error:
        raise BadBody(422, f"the body is no JSON: {error}") from None


def _read(request: Request) -> None:
    """Quickly, unless it is JSON of the kind that only Python takes, such as NaN, or that it may refuse."""
    text = request.text()
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        request.json()
    else:
        if LONG.search(text):
            request.json()


def returned(operation: Operation[..., object], reply: object) -> Outcome:
    """The function has returned. Raises BadReply for what cannot be sent."""
    if inspect.isawaitable(reply):
        if inspect.iscoroutine(reply):
            reply.close()
        raise BadReply("the operation returned something to await; write it as `async def`, or run it to its end")
    result = encode(reply)
    if is_decided(result.status):
        return Outcome(result, DONE)
    why = f"it answered {result.status}"
    return Outcome(result, undecided(operation), why, why)


def raised(operation: Operation[..., object], error: BaseException) -> Outcome:
    """The function has raised, or answered what cannot be sent. Never raises."""
    cause = _single(error)
    try:
        if isinstance(cause, BadBody):
            return Outcome(of_problem(cause.status, "bad-body", cause.detail), FREED)
        if isinstance(cause, Refuse):
            return Outcome(refusal(cause), FREED)
        if isinstance(cause, Retry):
            headers = (("retry-after", str(_whole_seconds(cause.after))),)
            return Outcome(of_problem(503, "", cause.why or "try again later", headers), FREED)
        if undecided(operation) != UNKNOWN and _is_of_reading(cause):
            return Outcome(of_problem(422, "bad-body", f"the body cannot be read: {cause}"), undecided(operation))
    except Exception as bad:  # noqa: BLE001  # what it was given may be anything
        cause = bad
    return failed(operation, f"{type(cause).__name__}: {_said(cause)}", f"{type(cause).__name__} at {_blamed(cause)}")


def failed(operation: Operation[..., object], why: str, reason: str, status: int = 500) -> Outcome:
    """The answer to a call that failed; it says no more than the caller may know."""
    state = undecided(operation)
    detail = {FREED: ROLLED_BACK, FAILED: AGAIN, UNKNOWN: LOST}[state]
    slug = "outcome-unknown" if state == UNKNOWN else ""
    return Outcome(of_problem(status, slug, detail), state, _bounded(why), reason)


def undecided(operation: Operation[..., object]) -> str:
    """What becomes of the key when it cannot be told what the function has done outside."""
    if operation.transactional:
        return FREED
    return FAILED if operation.retry_safe else UNKNOWN


def _single(error: BaseException) -> BaseException:
    """The one error of a group of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _whole_seconds(after: str | float | None) -> int:
    if after is None:
        return 1
    value = seconds(after) if isinstance(after, str) else float(after)
    return max(1, min(round(value + 0.499), 86_400 * 365))


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # an error that cannot say what it is
        return "(it cannot be shown)"


def _is_of_reading(error: BaseException) -> bool:
    """Whether it was raised while the operation read its request: the sender's fault, whatever the body is."""
    return any(frame.f_code in READING for frame, _ in traceback.walk_tb(error.__traceback__))


def _blamed(error: BaseException) -> str:
    """File and line of the innermost code that is neither ours nor a library's, if there is any."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not Path(frame.filename).is_relative_to(OURS)]
    if not theirs:
        return "no line of its own"
    own = [frame for frame in theirs if not any(Path(frame.filename).is_relative_to(place) for place in LIBRARIES)]
    blamed = (own or theirs)[-1]
    return f"{blamed.filename}, line {blamed.lineno}"


def _bounded(text: str) -> str:
    return text.encode("utf-8", "backslashreplace")[:ERROR_BYTES].decode("utf-8", "ignore")
