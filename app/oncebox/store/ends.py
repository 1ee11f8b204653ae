"""Ends: how many attempts ended, written together. Every step of a statement gives Python's lock away, and under load
to have it back costs more than the step: so few statements, and what they need to tell comes in one row."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from oncebox.model import Settled
from oncebox.store.books import Books
from oncebox.store.settles import NOBODY, end, settle
from oncebox.store.statement import filled, rounded, rows

FEW = 4
# So many in one statement, which has a limit to its parameters.
MANY = 256

# An end that is none. The first of its columns, which are those of `_row`, say which attempt it is; these and the next
# are kept of one that failed.
NOTHING = (None,) * 12
KEY, RECORDED = 4, 8


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
    if len(settled) > MANY:
        return [*settle_all(db, settled[:MANY], books, skipping), *settle_all(db, settled[MANY:], books, skipping)]
    if len(settled) < FEW or len({(one.seq, one.target) for one in settled}) < len(settled):
        return [settle(db, one, books, skipping) for one in settled]
    ends = [_row(one) for one in settled]
    ends += [NOTHING] * (rounded(len(ends)) - len(ends))
    found = db.execute(look_up(len(ends)), _flat(ends, KEY)).fetchone()[0]
    current = {(one.seq, one.target): one for one in _decode(found)}
    db.execute(write(len(ends)), _flat(ends, len(NOTHING)))
    ours = [one for one in settled if (one.seq, one.target) in current]
    failed = filled([_row(one) for one in ours if one.outcome != "ok"])
    if failed:
        db.execute(_record(len(failed)), _flat(failed, RECORDED))
    for one in ours:
        facts = current[one.seq, one.target]
        books.entries.moved(facts.source, "running", one.state, one.now)
        if one.state != "pending" and (facts.order_key is not None or facts.rerun is not None):
            skips = one.target in skipping
            end(db, one.target, one.state, facts.order_key, facts.rerun, one.now, books, skips=skips)
    return [(one.seq, one.target) in current for one in settled]


def look_up(count: int) -> str:
    """Which of so many are current attempts."""
    return rows(
        "select json_group_array(json_array(d.seq, d.target, d.source, d.order_key, d.rerun)) from (",
        KEY,
        count,
        ") v cross join deliveries d on d.seq = v.column1 and d.target = v.column2 "
        "where d.run = v.column3 and d.attempts = v.column4 and d.state = 'running'",
    )


def write(count: int) -> str:
    """So many ends, of those that are current attempts."""
    return rows(
        "update deliveries set suspect = 0, alone = 0, boot = null, duration = v.column6, outcome = v.column7, "
        "error = v.column8, state = v.column9, due = v.column10, failures = v.column11, processed_at = v.column12 "
        "from (",
        len(NOTHING),
        count,
        ") v where deliveries.seq = v.column1 and deliveries.target = v.column2 and deliveries.run = v.column3 "
        "and deliveries.attempts = v.column4 and deliveries.state = 'running'",
    )


def _record(count: int) -> str:
    """Attempts that failed are kept one by one; the one that succeeded is in the delivery itself."""
    columns = "seq, target, run, number, started_at, duration, outcome, detail"
    return rows(f"insert or replace into attempts ({columns})", RECORDED, count)


def _row(one: Settled) -> tuple[object, ...]:
    ended = one.now if one.state in ("done", "dead") else None
    attempt = (one.seq, one.target, one.run, one.attempt, one.started_at, one.duration, one.outcome, one.error)
    return (*attempt, one.state, one.due, one.failures, ended)


def _flat(ends: Sequence[tuple[object, ...]], columns: int) -> list[object]:
    """The first columns of each, one after the other."""
    return [value for one in ends for value in one[:columns]]
