"""Recovery: what a dead process left running. Suspects, not convicts."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from oncebox.store.books import Books
from oncebox.store.settles import end
from oncebox.store.statement import own

DEATHS = 3
REST = 5_000_000
ACQUITTALS = 3

LEFT = own(
    "select seq, target, source, run, attempts, suspect, alone, started_at from deliveries "
    "where state = 'running' and boot is not ? order by seq"
)
RECOVER = own(
    "update deliveries set state = ?, suspect = ?, alone = 0, boot = null, due = ?, outcome = ?, error = ?, "
    "processed_at = ? where seq = ? and target = ? returning order_key, rerun"
)
RECORD = own(
    "insert or replace into attempts (seq, target, run, number, started_at, outcome, detail) "
    "values (?, ?, ?, ?, ?, 'crashed', ?)"
)
RAN = "the process ended while this attempt was running"
# What is quick is claimed ahead: an attempt that was made and not counted would be worse than the other way round.
CLAIMED = "the process ended after this attempt was claimed; it ran, or was about to"
# `suspect > 0` for the sake of the index, which has those only.
ACQUIT = own(
    "update deliveries set suspect = 1, acquitted = acquitted + 1 "
    "where suspect > 0 and suspect > 1 and state = 'pending' and acquitted < ?"
)
# Only handlers' suspects run alone: at a target that is something else by now they would wait for ever.
CLEAR = own(
    "update deliveries set suspect = 0 where suspect > 0 and state = 'pending' "
    "and target not in (select value from json_each(?))"
)
POISON = (
    "poison: the process died {deaths} times while this attempt was running, {alone} of them with nothing beside it"
)


def recover(
    db: sqlite3.Connection,
    boot: str,
    python_targets: Sequence[str],
    now: int,
    books: Books,
    skipping: frozenset[str] = frozenset(),
) -> int:
    """Deliveries left running by another boot become pending; the number of suspects among them.

    Only Python handlers can take the process with them. A first death may be a neighbour's, or somebody's `kill -9`:
    the delivery runs alone next time. Only deaths while alone count, and after one of those it rests before it is tried
    again, so that a series of restarts does not convict it. A death meanwhile that came while no suspect was alone is
    not theirs: somebody else ends this process, and their deaths are counted from the start again. Not for ever: where
    ever new events bring the process down, the earlier ones would never be convicted. Whoever was suspected at a target
    that is no handler any more is like any other.
    """
    suspects = 0
    left = db.execute(LEFT, (boot,)).fetchall()
    if left and not any(row[6] for row in left):
        db.execute(ACQUIT, (ACQUITTALS,))
    db.execute(CLEAR, (msgspec.json.encode(list(python_targets)).decode(),))
    for row in left:
        seq, target, source, run, attempts, suspect, alone, started_at = row
        why = RAN if target in python_targets else CLAIMED
        db.execute(RECORD, (seq, target, run, attempts, started_at or now, why))
        deaths = verdict(suspect, alone=bool(alone)) if target in python_targets else 0
        if deaths >= DEATHS:
            why = POISON.format(deaths=deaths, alone=deaths - 1)
            order_key, rerun = db.execute(RECOVER, ("dead", 0, now, "crashed", why, now, seq, target)).fetchone()
            books.entries.moved(source, "running", "dead", now)
            end(db, target, "dead", order_key, rerun, now, books, skips=target in skipping)
            continue
        due = now + REST if deaths > 1 else now
        db.execute(RECOVER, ("pending", deaths, due, "crashed", None, None, seq, target)).fetchone()
        books.entries.moved(source, "running", "pending", now)
        suspects += deaths > 0
    return suspects


def verdict(suspect: int, *, alone: bool) -> int:
    """The deaths that count after one more: the first makes a suspect, later ones count only while alone."""
    if suspect == 0:
        return 1
    return suspect + 1 if alone else suspect
