"""Claims: due deliveries become running attempts, on disk before they start; the sources of a target take turns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from oncebox.model import Claimed
from oncebox.store import Batch, Share
from oncebox.store.books import Books
from oncebox.store.catch import MOST, Catch
from oncebox.store.routing import Routing
from oncebox.store.settles import end
from oncebox.store.statement import filled, members, own

# The next source, and when the first of it is due.
NEXT_SOURCE = own(
    "select source, due from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = ? and source > ? order by source, due limit 1"
)
COLUMNS = (
    "d.seq, d.target, d.source, d.run, d.attempts, d.failures, d.suspect, e.id, e.type, e.received_at, e.parent, "
    "p.headers, p.content_type, p.encoding, p.body, (select r.again from reruns r where r.id = d.rerun), d.lane"
)
JOINS = "cross join events e on e.seq = d.seq left join payloads p on p.seq = d.seq"
DUE = own(
    f"select {COLUMNS} from deliveries d indexed by deliveries_due {JOINS} where d.state = 'pending' and d.suspect = 0 "
    "and d.target = ? and d.lane = ? and d.source = ? and d.due between ? and ? order by d.due, d.seq limit ?"
)
SUSPECT = f"select {COLUMNS} from deliveries d indexed by deliveries_suspect {JOINS}"
SUSPECT_TAIL = "and d.suspect > 0 and d.state = 'pending' and d.due <= ? order by d.due, d.seq limit 1"
START = (
    "update deliveries set state = 'running', attempts = attempts + 1, boot = ?, started_at = ?, alone = ? "
    "where target = ? and seq in"
)
GIVE_BACK = own(
    "update deliveries set state = 'pending', attempts = attempts - 1, boot = null, alone = 0, due = min(due, ?) "
    "where seq = ? and target = ? and run = ? and attempts = ? and state = 'running'"
)
PUT_OFF = own(
    "update deliveries set state = 'pending', attempts = attempts - 1, boot = null, alone = 0, due = ? "
    "where seq = ? and target = ? and run = ? and attempts = ? and state = 'running'"
)
HASTEN = (
    "update deliveries set due = min(due, ?, (select received_at from events e where e.seq = deliveries.seq)) "
    "where state = 'pending' and target = ? and seq in"
)
UNREACHED = own(
    "select seq from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = ? and source = ? and due > ? and outcome = 'unreachable' order by due limit ?"
)
FIRST = own(
    "select due from deliveries indexed by deliveries_due where state = 'pending' and suspect = 0 "
    "and target = ? and lane = ? and source = ? order by due limit 1"
)
FIRST_SUSPECT = "select min(due) from deliveries where state = 'pending' and target in"
SET_ASIDE = own(
    "update deliveries set state = 'dead', outcome = 'error', error = ?, processed_at = ? where seq = ? and target = ? "
    "returning order_key, rerun"
)

# How many unreadable ones a claim sets aside before it ends.
ASIDE = 256


class Claims:
    """Takes what is due of a target. Remembers which source came last, so that the next one begins."""

    def __init__(self, boot: str, instance: str, routing: Routing) -> None:
        self.boot = boot
        self.instance = instance
        self._routing = routing
        self._last: dict[tuple[str, int], str] = {}

    def take(
        self,
        db: sqlite3.Connection,
        target: str,
        limit: int,
        now: int,
        books: Books,
        since: int = 0,
        share: Share | None = None,
        most: int = MOST,
    ) -> Batch:
        """Up to `limit` due deliveries of a target, marked as running; live ones before reruns. With `since` only live
        ones that are due since then; of each source no more than its `share`; of bodies about `most` bytes, though one
        at least. What cannot be read is set aside, and does not count."""
        catch = Catch(limit, max(1, most), self.instance)
        aside = 0
        for lane in (0,) if since else (0, 1):
            more = True
            while more and catch.room:
                before = len(catch.found)
                share, more = self._due(db, catch, target, lane, since, now, share, books)
                self._start(db, target, catch.found[before:], now, alone=False)
                # Behind each of them something may be due that had no room, or has its turn only now.
                more |= bool(catch.unreadable)
                aside += len(catch.unreadable)
                self._set_aside(db, catch, now, books)
                if aside >= ASIDE:
                    return Batch(catch.found, cut=len(catch.found) < limit)
        return Batch(catch.found, cut=catch.cut)

    def take_together(
        self, db: sqlite3.Connection, targets: Sequence[str], limit: int, now: int, books: Books
    ) -> Batch:
        """Up to `limit` of several targets, which share the rows and the bytes; what the first ones leave goes to the
        others."""
        found, left = Batch(), MOST
        for position, target in enumerate(targets):
            room, sharing = limit - len(found), len(targets) - position
            if room > 0:
                share = max(1, room // sharing)
                batch = self.take(db, target, share, now, books, most=left // sharing)
                left -= sum(one.weight for one in batch)
                found += batch
                found.cut |= batch.cut
        return found

    def take_suspect(self, db: sqlite3.Connection, targets: Sequence[str], now: int, books: Books) -> Claimed | None:
        """The oldest due delivery that a dead process left running and that can be read, to be run alone."""
        if not targets:
            return None
        sql = members(f"{SUSPECT} where d.target in", len(targets), SUSPECT_TAIL)
        catch = Catch(1, MOST, self.instance)
        for _ in range(ASIDE):
            if catch.haul(db.execute(sql, [*targets, now])):
                one = catch.found[0]
                self._start(db, one.target, [one], now, alone=True)
                books.entries.moved(one.event.source, "pending", "running", now)
                return one
            if not catch.unreadable:
                return None
            self._set_aside(db, catch, now, books)
        return None

    def next_due(self, db: sqlite3.Connection, targets: Sequence[str], share: Share | None = None) -> int | None:
        """The earliest due time of what is pending for these targets, and has a share."""
        if not targets:
            return None
        dues = [self._first_due(db, target, lane, share) for target in targets for lane in (0, 1)]
        suspect = db.execute(members(FIRST_SUSPECT, len(targets), "and suspect > 0"), list(targets)).fetchone()
        return min((due for due in (*dues, suspect[0]) if due is not None), default=None)

    def _first_due(self, db: sqlite3.Connection, target: str, lane: int, share: Share | None) -> int | None:
        turn = self._turn(db, target, lane, share)
        firsts = [db.execute(FIRST, (target, lane, source)).fetchone() for source in turn]
        return min((row[0] for row in firsts if row is not None), default=None)

    def _due(
        self,
        db: sqlite3.Connection,
        catch: Catch,
        target: str,
        lane: int,
        since: int,
        now: int,
        share: Share | None,
        books: Books,
    ) -> tuple[Share | None, bool]:
        """Each source gets an equal part of the room, and what one leaves goes to the next. The share that is left, and
        whether some would have had more than its part."""
        turn = self._turn(db, target, lane, share, now)
        more = False
        for position, source in enumerate(turn):
            room = catch.room
            if room <= 0:
                break
            part = equal = max(1, room // (len(turn) - position))
            if share is not None:
                part = min(part, share.most(source, history=lane > 0))
            took = catch.haul(db.execute(DUE, (target, lane, source, since, now, part))) if part > 0 else 0
            if took:
                self._last[target, lane] = source
                books.entries.moved(source, "pending", "running", now, count=took)
                share = None if share is None else share.took(source, took, history=lane > 0)
                more |= took == equal
        return share, more

    def _turn(
        self, db: sqlite3.Connection, target: str, lane: int, share: Share | None, now: int | None = None
    ) -> list[str]:
        """The sources that have something pending, if `now` is given due by then, and a share; the one after the last
        served first."""
        sources: list[str] = []
        after = ""
        while (row := db.execute(NEXT_SOURCE, (target, lane, after)).fetchone()) is not None:
            after, due = row
            if (now is None or due <= now) and (share is None or share.most(after, history=lane > 0) > 0):
                sources.append(after)
        last = self._last.get((target, lane), "")
        return [s for s in sources if s > last] + [s for s in sources if s <= last]

    def _start(self, db: sqlite3.Connection, target: str, some: Sequence[Claimed], now: int, *, alone: bool) -> None:
        if some:
            seqs = filled([one.event.seq for one in some])
            db.execute(members(START, len(seqs)), [self.boot, now, int(alone), target, *seqs])

    def _set_aside(self, db: sqlite3.Connection, catch: Catch, now: int, books: Books) -> None:
        """What cannot be read must not stop the others: it is dead, with the reason."""
        for seq, target, source, why in catch.unreadable:
            order_key, rerun = db.execute(SET_ASIDE, (why, now, seq, target)).fetchone()
            books.entries.moved(source, "pending", "dead", now)
            end(db, target, "dead", order_key, rerun, now, books, skips=target in self._routing.skipping)
        catch.unreadable = []


def unreached(db: sqlite3.Connection, target: str, now: int, most: int) -> list[int]:
    """Deliveries that wait for another try because their target could not be reached, `most` of them at most."""
    found: list[int] = []
    for lane in (0, 1):
        row = db.execute(NEXT_SOURCE, (target, lane, "")).fetchone()
        while row is not None and len(found) < most:
            found += (seq for (seq,) in db.execute(UNREACHED, (target, lane, row[0], now, most - len(found))))
            row = db.execute(NEXT_SOURCE, (target, lane, row[0])).fetchone()
    return found


def hasten(db: sqlite3.Connection, target: str, seqs: Sequence[int], now: int) -> None:
    """Deliveries that wait for another try are due as of their arrival, so that the oldest goes out first; in any case
    now: the clock may have been set back since."""
    for some in (seqs[start : start + 500] for start in range(0, len(seqs), 500)):
        some = filled(some)  # noqa: PLW2901  # few statements
        db.execute(members(HASTEN, len(some)), [now, target, *some])


def give_back(db: sqlite3.Connection, taken: Iterable[Claimed], now: int, books: Books) -> None:
    """Claimed and not started: pending again, and the attempt does not count. It was due, and is so also by a clock
    that was set back meanwhile."""
    for one in taken:
        done = db.execute(GIVE_BACK, (now, one.event.seq, one.target, one.run, one.attempt))
        if done.rowcount:
            books.entries.moved(one.event.source, "running", "pending", now)


def put_off(db: sqlite3.Connection, one: Claimed, due: int, now: int, books: Books) -> None:
    """Started, and it could not be made for no fault of its own: pending again from `due` on, and it does not count."""
    done = db.execute(PUT_OFF, (due, one.event.seq, one.target, one.run, one.attempt))
    if done.rowcount:
        books.entries.moved(one.event.source, "running", "pending", now)
