"""Ends: how many attempts ended, written together. Every step of a statement gives Python's lock away, and under load
to have it back costs more than the step: so few statements, and what they need to tell comes in one row."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from oncebox.model import Settled
from oncebox.store.books import Books
from oncebox.store.settles import NOBODY, end, settle
from oncebox.store.statement import own

FEW = 4

# The columns of one end, as `_row` writes them.
ENDS = (
    "select value ->> 0 as seq, value ->> 1 as target, value ->> 2 as run, value ->> 3 as attempt, "
    "value ->> 4 as state, value ->> 5 as outcome, value ->> 6 as error, value ->> 7 as duration, value ->> 8 as due, "
    "value ->> 9 as failures, value ->> 10 as processed_at, value ->> 11 as started_at from json_each(?)"
)
CURRENT = own(
    f"select json_group_array(json_array(d.seq, d.target, d.source, d.order_key, d.rerun)) from ({ENDS}) v "
    "cross join deliveries d on d.seq = v.seq and d.target = v.target "
    "where d.run = v.run and d.attempts = v.attempt and d.state = 'running'"
)
SETTLE = own(
    "update deliveries set state = v.state, outcome = v.outcome, error = v.error, duration = v.duration, due = v.due, "
    "failures = v.failures, processed_at = v.processed_at, suspect = 0, alone = 0, boot = null "
    f"from ({ENDS}) v where deliveries.seq = v.seq and deliveries.target = v.target and deliveries.run = v.run "
    "and deliveries.attempts = v.attempt and deliveries.state = 'running'"
)
# Attempts that failed are kept one by one; the one that succeeded is in the delivery itself.
RECORD = own(
    "insert or replace into attempts (seq, target, run, number, started_at, duration, outcome, detail) "
    f"select seq, target, run, attempt, started_at, duration, outcome, error from ({ENDS})"
)


class Current(msgspec.Struct, frozen=True, array_like=True):
    """A delivery whose current attempt has ended."""

    seq: int
    target: str
    source: str
    order_key: str | None
    rerun: int | None


_decode = msgspec.json.Decoder(list[Current]).decode


def settle_all(
    db: sqlite3.Connection, settled: Sequence[Settled], books: Books, skipping: frozenset[str] = NOBODY
) -> list[bool]:
    """Write the ends of attempts, as `settle` does with each; for each whether it was the current one."""
    if len(settled) < FEW or len({(one.seq, one.target) for one in settled}) < len(settled):
        return [settle(db, one, books, skipping) for one in settled]
    text = _json([_row(one) for one in settled])
    current = {(one.seq, one.target): one for one in _decode(db.execute(CURRENT, (text,)).fetchone()[0])}
    ours = [one for one in settled if (one.seq, one.target) in current]
    db.execute(SETTLE, (text,))
    failed = [_row(one) for one in ours if one.outcome != "ok"]
    if failed:
        db.execute(RECORD, (_json(failed),))
    for one in ours:
        facts = current[one.seq, one.target]
        books.entries.moved(facts.source, "running", one.state, one.now)
        if one.state != "pending" and (facts.order_key is not None or facts.rerun is not None):
            skips = one.target in skipping
            end(db, one.target, one.state, facts.order_key, facts.rerun, one.now, books, skips=skips)
    return [(one.seq, one.target) in current for one in settled]


def _row(one: Settled) -> list[object]:
    ended = one.now if one.state in ("done", "dead") else None
    facts = (one.seq, one.target, one.run, one.attempt, one.state, one.outcome, one.error, one.duration, one.due)
    return [*facts, one.failures, ended, one.started_at]


def _json(rows: Sequence[object]) -> str:
    return msgspec.json.encode(rows).decode()
