"""Reruns: history processed again, some deliveries at a time, so that it can be stopped, goes on after a restart and
never runs one twice. Also the revival of what is dead by the sender's repeats."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from oncebox.model import Settled
from oncebox.store.books import Books
from oncebox.store.choice import Choice, Picked, Piece
from oncebox.store.routing import Routing
from oncebox.store.statement import own

LIVE, HISTORY = 0, 1
REVIVED_EVERY = 600_000_000

CREATE = own(
    "insert into reruns (state, filter, rate, again, matched, position, upto, who, created_at) "
    "values ('running', ?, ?, ?, ?, ?, ?, ?, ?) returning id"
)
COLUMNS = (
    "select id, state, filter, rate, again, matched, position, upto, fed, queued, skipped, done, dead, who, "
    "created_at, finished_at from reruns"
)
ONE = own(f"{COLUMNS} where id = ?")
LIST = own(f"{COLUMNS} where id < ? order by id desc limit ?")
OPEN = own(f"{COLUMNS} indexed by reruns_open where state = 'running' and fed = 0 order by id")
# The position it was read at: a piece that was found for another one, or after a cancel, is not for it.
ADVANCE = own(
    "update reruns set position = ?, fed = ?, skipped = skipped + ? "
    "where id = ? and position = ? and state = 'running' and fed = 0"
)
FINISHED = "state = 'running' and fed = 1 and done + dead = queued"
QUEUED = own("update reruns set queued = queued + ?, skipped = skipped + ? where id = ?")
COUNT = {
    "done": own("update reruns set done = done + 1 where id = ? returning fed"),
    "dead": own("update reruns set dead = dead + 1 where id = ? returning fed"),
}
FINISH = own(f"update reruns set state = 'done', finished_at = ? where id = ? and {FINISHED}")
CANCEL = own("update reruns set state = 'cancelled', finished_at = ? where id = ? and state = 'running'")

ENDED = own(
    "select source, state, order_key, attempts, started_at, duration, outcome, error from deliveries "
    "where seq = ? and target = ? and run = ? and state in ('done', 'dead')"
)
KEEP_ATTEMPT = own(
    "insert into attempts (seq, target, run, number, started_at, duration, outcome, detail) "
    "values (?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing"
)
AGAIN = own(
    "update deliveries set state = ?, run = run + 1, attempts = 0, failures = 0, lane = ?, due = ?, rerun = ?, "
    "suspect = 0, alone = 0, boot = null, started_at = null, duration = null, outcome = null, error = null, "
    "processed_at = null where seq = ? and target = ?"
)
# An event may have been pruned or erased since it was found.
BODY = own("select 1 from payloads where seq = ?")
MAKE = own(
    "insert into deliveries (seq, target, source, lane, order_key, state, due, rerun) "
    "select seq, ?, source, ?, ?, ?, ?, ? from events where seq = ? on conflict do nothing returning source"
)
ROUTED = own("select exists (select 1 from deliveries where seq = ?)")
FLYING = own(
    "select exists (select 1 from deliveries indexed by deliveries_flying where order_key is not null "
    "and state in ('pending', 'running') and target = ? and order_key = ?)"
)
EARLIER = own(
    "select exists (select 1 from deliveries where target = ? and order_key = ? and order_key is not null "
    "and state <> 'done' and state <> ? and seq < ?)"
)
DEAD = own(
    "select target, run, order_key from deliveries where seq = ? and state = 'dead' and outcome <> 'crashed' "
    "and processed_at <= ?"
)
REVIVE = own("update replays set revived_at = ? where seq = ? and (revived_at is null or revived_at <= ?)")
NEXT_SOURCE = own(
    "select source from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = 1 and source > ? order by source limit 1"
)
WAITING = own(
    "select count(*) from (select 1 from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = 1 and source = ? and due <= ? limit ?)"
)
SUFFIX = own("select r.again from deliveries d join reruns r on r.id = d.rerun where d.seq = ? and d.target = ?")


class Rerun(msgspec.Struct, frozen=True):
    """One order to run history again. `matched` was counted at its start; a cancelled one still ends what it queued."""

    id: int
    state: str
    choice: Choice
    rate: float | None
    again: bool
    matched: int
    position: int
    upto: int
    fed: bool
    queued: int
    skipped: int
    done: int
    dead: int
    who: str
    created_at: int
    finished_at: int | None


def create(
    db: sqlite3.Connection,
    choice: Choice,
    *,
    rate: float | None,
    again: bool,
    matched: int,
    between: tuple[int, int],
    who: str,
    now: int,
) -> int:
    """Write the order down; `between` bounds the arrival numbers that it means. Nothing is queued yet."""
    row = (msgspec.json.encode(choice).decode(), rate, int(again), matched, *between, who, now)
    return int(db.execute(CREATE, row).fetchone()[0])


def find_rerun(db: sqlite3.Connection, id: int) -> Rerun | None:
    """The rerun of this number."""
    row = db.execute(ONE, (id,)).fetchone()
    return None if row is None else _rerun(row)


def list_reruns(db: sqlite3.Connection, before: int, limit: int) -> list[Rerun]:
    """The newest reruns with numbers below `before`."""
    return [_rerun(row) for row in db.execute(LIST, (before, limit))]


def open_reruns(db: sqlite3.Connection) -> list[Rerun]:
    """Those that have something left to queue, oldest first."""
    return [_rerun(row) for row in db.execute(OPEN)]


def feed(
    db: sqlite3.Connection, rerun: Rerun, piece: Piece, now: int, books: Books, skipping: frozenset[str] = frozenset()
) -> set[str]:
    """Queue what was found next and move the position with it; the targets to wake. Nothing happens if the rerun was
    cancelled or has moved meanwhile. `skipping` are the targets whose order goes on past a dead delivery."""
    fed = piece.position >= rerun.upto
    moved = db.execute(ADVANCE, (piece.position, int(fed), piece.skipped, rerun.id, rerun.position))
    if not moved.rowcount:
        return set()
    queued = [one for one in piece.picked if put_back(db, one, rerun.id, HISTORY, now, books, skipping)]
    db.execute(QUEUED, (len(queued), len(piece.picked) - len(queued), rerun.id))
    if fed:
        db.execute(FINISH, (now, rerun.id))
    return {one.target for one in queued}


def cancel(db: sqlite3.Connection, id: int, now: int) -> bool:
    """Queue nothing more; False if it had ended already. What is queued is still processed."""
    return db.execute(CANCEL, (now, id)).rowcount > 0


def put_back(
    db: sqlite3.Connection,
    one: Picked,
    rerun: int | None,
    lane: int,
    now: int,
    books: Books,
    skipping: frozenset[str],
) -> bool:
    """Have one delivery processed again from its first attempt; its last one is kept. False: it is not as it was found,
    and stays as it is."""
    if db.execute(BODY, (one.seq,)).fetchone() is None:
        return False
    if one.run == 0:
        return _make(db, one, rerun, lane, now, books, skipping)
    row = db.execute(ENDED, (one.seq, one.target, one.run)).fetchone()
    if row is None:
        return False
    source, before, order_key, attempts, started_at, duration, outcome, error = row
    if outcome is not None and started_at is not None:
        kept = (one.seq, one.target, one.run, attempts, started_at, duration, outcome, error)
        db.execute(KEEP_ATTEMPT, kept)
    state = _turn(db, one, order_key, skipping)
    db.execute(AGAIN, (state, lane, now, rerun, one.seq, one.target))
    books.entries.moved(source, before, state, now)
    return True


def count_ended(db: sqlite3.Connection, rerun: int, state: str, now: int) -> None:
    """A delivery of a rerun is done or dead; with the last one the rerun is done."""
    row = db.execute(COUNT[state], (rerun,)).fetchone()
    if row is not None and row[0]:
        db.execute(FINISH, (now, rerun))


def revive(db: sqlite3.Connection, seq: int, now: int, books: Books, routing: Routing) -> set[str]:
    """The sender repeats an event: what is dead of it gets a new run, once in ten minutes; the targets to wake.

    Not what ended the process: that would end it again, and is for a person to decide; nor what went to a target that
    is gone, where it would wait for ever.
    """
    dead = [row for row in db.execute(DEAD, (seq, now)) if routing.exists(row[0])]
    if not dead or not db.execute(REVIVE, (now, seq, now - REVIVED_EVERY)).rowcount:
        return set()
    picked = [Picked(seq, *row) for row in dead]
    return {one.target for one in picked if put_back(db, one, None, LIVE, now, books, routing.skipping)}


def waiting(db: sqlite3.Connection, target: str, now: int, most: int) -> int:
    """How many deliveries of reruns are due at a target, counted up to `most`."""
    count, source = 0, ""
    while count < most and (row := db.execute(NEXT_SOURCE, (target, source)).fetchone()) is not None:
        source = row[0]
        count += db.execute(WAITING, (target, source, now, most - count)).fetchone()[0]
    return count


def crowded(db: sqlite3.Connection, targets: Iterable[str], now: int, most: int) -> bool:
    """Have any of these targets so much to do that more would only wait?"""
    return any(waiting(db, target, now, most) >= most for target in targets)


def suffix(db: sqlite3.Connection, settled: Settled) -> str:
    """What is added to the ids that this attempt emits: something only in a rerun that asked for it."""
    row = db.execute(SUFFIX, (settled.seq, settled.target)).fetchone()
    return run_suffix(settled.run) if row is not None and row[0] else ""


def run_suffix(run: int) -> str:
    """Makes an emitted id one that no earlier run has emitted."""
    return f"~{run}"


def _make(
    db: sqlite3.Connection,
    one: Picked,
    rerun: int | None,
    lane: int,
    now: int,
    books: Books,
    skipping: frozenset[str],
) -> bool:
    """A delivery that the event never had."""
    (routed,) = db.execute(ROUTED, (one.seq,)).fetchone()
    state = _turn(db, one, one.order_key, skipping)
    row = db.execute(MAKE, (one.target, lane, one.order_key, state, now, rerun, one.seq)).fetchone()
    if row is None:
        return False
    books.entries[row[0], state, 0] += 1
    if not routed:
        books.entries[row[0], "unrouted", 0] -= 1
    return True


def _turn(db: sqlite3.Connection, one: Picked, order_key: str | None, skipping: frozenset[str]) -> str:
    """`pending` if nothing of its key is in flight and no earlier one keeps it waiting, else `parked`."""
    if order_key is None:
        return "pending"
    passed = "dead" if one.target in skipping else "done"
    (flying,) = db.execute(FLYING, (one.target, order_key)).fetchone()
    (waits,) = db.execute(EARLIER, (one.target, order_key, passed, one.seq)).fetchone()
    return "parked" if flying or waits else "pending"


def _rerun(row: Sequence[Any]) -> Rerun:
    id, state, choice, rate, again, matched, position, upto, fed, *rest = row
    chosen = msgspec.json.decode(choice, type=Choice)
    return Rerun(id, state, chosen, rate, bool(again), matched, position, upto, bool(fed), *rest)
