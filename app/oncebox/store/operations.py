"""Operations: what is known of each call by (caller, key): its request's hash, how it ended, what was answered."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

import msgspec

from oncebox.model import Call, Performed, Result
from oncebox.store import DONE, FAILED, FREED, UNKNOWN, Ended
from oncebox.store.acts import act
from oncebox.store.statement import members, own

# `interrupted` was running when the process ended and may run again, for the same request only.
RUNNING, INTERRUPTED = "running", "interrupted"

STEP = 500
STEP_BYTES = 16 << 20
CRASHED = "the process ended while it was running"

LOOK_UP = own(
    "select state, request_hash, finished_at, attempts, status, headers, body from operations "
    "where caller = ? and key = ?"
)
# A row that is there already has ended and does not count any more.
PUT = own(
    "insert into operations (caller, key, operation, request_hash, state, boot, started_at, finished_at, attempts, "
    "status, headers, body) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (caller, key) do update set "
    "operation = excluded.operation, request_hash = excluded.request_hash, state = excluded.state, "
    "boot = excluded.boot, started_at = excluded.started_at, finished_at = excluded.finished_at, "
    "attempts = excluded.attempts, status = excluded.status, headers = excluded.headers, body = excluded.body, "
    "error = null"
)
CURRENT = own(
    "select 1 from operations where caller = ? and key = ? and state = 'running' and boot = ? and attempts = ?"
)
END = own(
    "update operations set state = ?, boot = null, finished_at = ?, status = ?, headers = ?, body = ?, error = ? "
    "where caller = ? and key = ?"
)
DROP = own("delete from operations where caller = ? and key = ?")
INTERRUPT = (
    "update operations set state = 'interrupted', boot = null, finished_at = ? "
    "where state = 'running' and boot is not ? and operation in"
)
DOUBT = own("update operations set state = 'unknown', boot = null, error = ? where state = 'running' and boot is not ?")
OLD = own("select rowid, coalesce(length(body), 0) from operations where finished_at < ? order by finished_at limit ?")
UNDECIDED = own("select 1 from operations where caller = ? and key = ? and state = 'unknown'")
COLUMNS = "rowid, caller, key, operation, state, started_at, finished_at, attempts, status, error"
ONE = own(f"select {COLUMNS} from operations where caller = ? and key = ?")


class Known(msgspec.Struct, frozen=True):
    """A call as people see it. `n` is its number in lists; times are unix microseconds."""

    n: int
    caller: str
    key: str
    operation: str
    state: str
    started_at: int
    finished_at: int | None
    attempts: int
    status: int | None
    error: str | None


def look_up(db: sqlite3.Connection, call: Call) -> Performed:
    """What is known of a call: it is new, or it has been made before."""
    row = db.execute(LOOK_UP, (call.caller, call.key)).fetchone()
    if row is None:
        return Performed("new")
    state, fingerprint, finished_at, attempts, status, headers, body = row
    same = fingerprint == call.fingerprint
    if finished_at is not None and finished_at < call.expired:
        return Performed("new")
    if state == FAILED:
        return Performed("new", attempt=attempts + 1 if same else 1)
    if not same:
        return Performed("conflict")
    if state == DONE:
        return Performed("replayed", Result(status, _pairs(headers), body), attempts)
    return Performed("new" if state == INTERRUPTED else state, attempt=attempts + (state == INTERRUPTED))


def keep(db: sqlite3.Connection, call: Call, attempt: int, result: Result) -> None:
    """Write a call that has been performed in this transaction, with its result."""
    row = (call.caller, call.key, call.operation, call.fingerprint, DONE, None, call.at, call.at, attempt)
    db.execute(PUT, (*row, result.status, msgspec.json.encode(result.headers), result.body))


def begin(db: sqlite3.Connection, call: Call, boot: str) -> Performed:
    """Look a call up and, if it is new, write that it runs: it is on disk before it starts."""
    found = look_up(db, call)
    if found.state == "new":
        row = (call.caller, call.key, call.operation, call.fingerprint, RUNNING, boot, call.at, None, found.attempt)
        db.execute(PUT, (*row, None, None, None))
    return found


def is_current(db: sqlite3.Connection, call: Call, attempt: int, boot: str) -> bool:
    """Is this still the attempt that runs?"""
    return db.execute(CURRENT, (call.caller, call.key, boot, attempt)).fetchone() is not None


def end(db: sqlite3.Connection, call: Call, ended: Ended, now: int) -> None:
    """Write how the current attempt ended. What is unknown has no time of its end, so that it never expires."""
    if ended.state == FREED:
        db.execute(DROP, (call.caller, call.key))
        return
    finished_at, result = None if ended.state == UNKNOWN else now, ended.result
    kept = (None, None, None) if result is None else (result.status, msgspec.json.encode(result.headers), result.body)
    db.execute(END, (ended.state, finished_at, *kept, ended.why or None, call.caller, call.key))


def recover(db: sqlite3.Connection, boot: str, retry_safe: Collection[str], now: int) -> tuple[int, int]:
    """What another boot left running may run again where that is safe, else it is unknown; how many of each."""
    interrupted = db.execute(members(INTERRUPT, len(retry_safe)), (now, boot, *retry_safe)).rowcount
    return interrupted, db.execute(DOUBT, (CRASHED, boot)).rowcount


def resolve(db: sqlite3.Connection, caller: str, key: str, result: Result | None, who: str, now: int) -> bool:
    """A person decides of an unknown call: it was done with this result or, without one, its key is free. False: it
    is not unknown."""
    if db.execute(UNDECIDED, (caller, key)).fetchone() is None:
        return False
    call = Call(caller=caller, key=key, operation="", fingerprint=b"", at=now)
    end(db, call, Ended(FREED) if result is None else Ended(DONE, result), now)
    decided = "free" if result is None else f"done with {result.status}"
    act(db, who, "operation resolved", f"{caller or 'anybody'} {key}: {decided}", now)
    return True


def expire(db: sqlite3.Connection, before: int) -> int:
    """Remove some of what ended before then, at most 500 and not much more than 16 MiB; how many. Nothing that runs or
    is unknown is removed."""
    size = 0
    chosen: list[tuple[int]] = []
    for number, length in db.execute(OLD, (before, STEP)):
        if chosen and size + length > STEP_BYTES:
            break
        size += length
        chosen.append((number,))
    db.executemany(own("delete from operations where rowid = ?"), chosen)
    return len(chosen)


def find_call(db: sqlite3.Connection, caller: str, key: str) -> Known | None:
    """One call."""
    row = db.execute(ONE, (caller, key)).fetchone()
    return Known(*row) if row else None


def _pairs(headers: bytes) -> tuple[tuple[str, str], ...]:
    return msgspec.json.decode(headers, type=tuple[tuple[str, str], ...])
