"""Slices: a few milliseconds of transactional handlers in one transaction, each under a savepoint of its own."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence

import msgspec

from oncebox.model import Claimed, Settled
from oncebox.seldom import Seldom
from oncebox.store import Runner
from oncebox.store.blame import Blame, own_fault
from oncebox.store.books import Books, Entries
from oncebox.store.busy import Busy
from oncebox.store.claims import Claims, give_back, put_off
from oncebox.store.edge import unwritten
from oncebox.store.faults import is_refused
from oncebox.store.guard import Guard
from oncebox.store.jobs import roll_back
from oncebox.store.reruns import run_suffix
from oncebox.store.routing import Routing
from oncebox.store.settles import current, settle
from oncebox.store.statement import BEGIN, COMMIT, RELEASE, ROLLBACK_TO, SAVEPOINT
from oncebox.store.transaction import HandlerTransaction, hold_to

SLICE = 0.005
# Beside a crowd of accepts, which wait for it.
SHORT = 0.00125
HELD = 64
# Microseconds until what the disk refused to a handler is tried again.
REFUSED_REST = 5_000_000
BROKEN = "the handler's SQL ended the transaction (such as by `insert or rollback`); nothing of it was kept"

log = logging.getLogger("oncebox.store")


class Done(msgspec.Struct):
    """What one slice came to: attempts that ended, targets that got new deliveries, whether something is left, and
    what was put off."""

    settled: list[Settled]
    targets: set[str]
    more: bool
    put_off: list[Claimed] = []


class Slices:
    """Claims for the next slice commit together with the settling of this one, so an attempt is on disk before it
    starts and a slice costs one commit."""

    def __init__(
        self,
        db: sqlite3.Connection,
        claims: Claims,
        books: Books,
        routing: Routing,
        guard: Guard,
        paused: Callable[[str], bool],
        busy: Busy,
        blame: Blame,
        *,
        sync_timeout: float = 1.0,
    ) -> None:
        self._db = db
        self._claims = claims
        self._books = books
        self._routing = routing
        self._guard = guard
        self._paused = paused
        self._busy = busy
        self._blame = blame
        self._refused: sqlite3.Error | None = None
        self._woken: set[str] = set()
        self._warnings = Seldom(log, logging.WARNING)
        self.sync_timeout = sync_timeout
        self._held: list[Claimed] = []
        self._cut = False

    def process(self, targets: Sequence[str], runner: Runner, now: Callable[[], int], *, crowded: bool = False) -> Done:
        """Run what is held for a while (one at least), settle it, hold what is due next. Raises sqlite3.Error when the
        disk fails."""
        span = SHORT if crowded else SLICE
        self._drop_unwanted(targets, now())
        if not self._held:
            self._hold(targets, now())
        batch, self._held = self._held, []
        done = Done([], set(), more=False)
        try:
            if batch:
                apart = self._run_together(batch, runner, targets, now, done, span)
                self._run_apart(apart, runner, now, done)
                done.more = bool(self._held or apart)
            done.more |= self._cut
        except BaseException:
            self._keep(batch, done)
            raise
        return done

    def run_alone(self, suspect: Claimed, runner: Runner, now: Callable[[], int]) -> Done:
        """Run one delivery in a transaction of its own; one whose target was paused meanwhile is given back."""
        done = Done([], set(), more=False)
        if self._paused(suspect.target):
            self._release([suspect], now())
        else:
            self._run_apart([suspect], runner, now, done)
        return done

    def told(self) -> set[str]:
        """The targets that got new deliveries by what was committed since this was asked last."""
        woken, self._woken = self._woken, set()
        return woken

    def give_back(self, now: int) -> None:
        """Release what is held and has not started: the process stops."""
        self._release(self._held, now)
        self._held = []

    def _hold(self, targets: Sequence[str], now: int) -> None:
        self._db.execute(BEGIN)
        held = self._claim(targets, now)
        self._commit()
        self._held = held

    def _claim(self, targets: Sequence[str], now: int) -> list[Claimed]:
        awake = [target for target in targets if not self._paused(target)]
        batch = self._claims.take_together(self._db, awake, HELD, now, self._books)
        self._cut = batch.cut
        return batch

    def _drop_unwanted(self, targets: Sequence[str], now: int) -> None:
        unwanted = [c for c in self._held if self._paused(c.target) or c.target not in targets]
        self._release(unwanted, now)
        self._held = [c for c in self._held if c not in unwanted]

    def _release(self, some: Sequence[Claimed], now: int) -> None:
        if some:
            self._db.execute(BEGIN)
            give_back(self._db, some, now, self._books)
            self._commit()

    def _run_together(
        self,
        batch: list[Claimed],
        runner: Runner,
        targets: Sequence[str],
        now: Callable[[], int],
        done: Done,
        span: float,
    ) -> list[Claimed]:
        """The batch in one transaction. What a broken transaction takes with it is returned, to be done apart."""
        db = self._db
        db.execute(BEGIN)
        until = time.monotonic() + span
        ended: list[Settled] = []
        woken: set[str] = set()
        for position, claimed in enumerate(batch):
            settled, emitted = self._run_one(claimed, runner, now())
            if settled is None or not db.in_transaction:
                self._books.forget()
                return self._after_a_break(batch, position, settled, now, done)
            woken |= emitted
            ended.append(settled)
            if time.monotonic() > until or settled.outcome == "timeout":
                break
        for settled in ended:
            settle(db, settled, self._books, self._routing.skipping)
        left = batch[len(ended) :]
        held = left or self._claim(targets, now())
        if not self._takes_commit():  # of all together; it may be one's alone
            self._held = left
            return batch[: len(ended)]
        self._held = held
        done.settled += ended
        done.targets |= woken
        self._woken |= woken
        return []

    def _after_a_break(
        self, batch: list[Claimed], position: int, settled: Settled | None, now: Callable[[], int], done: Done
    ) -> list[Claimed]:
        """The transaction is gone, with the work of all before. Who overran has been judged; who broke it shows
        itself when it is run apart."""
        self._held = batch[position + 1 :]
        if settled is None or settled.outcome != "timeout":
            return batch[: position + 1]
        self._settle_apart(settled, done)
        return batch[:position]

    def _run_apart(self, batch: Sequence[Claimed], runner: Runner, now: Callable[[], int], done: Done) -> None:
        for claimed in batch:
            self._db.execute(BEGIN)
            begun = now()
            settled, emitted = self._run_one(claimed, runner, begun)
            if settled is None:
                self._after_a_refusal(claimed, runner, begun, now(), done)
                continue
            if self._db.in_transaction:
                settle(self._db, settled, self._books, self._routing.skipping)
                if not self._takes_commit():
                    self._after_a_refusal(claimed, runner, begun, now(), done)
                    continue
                done.settled.append(settled)
                done.targets |= emitted
                self._woken |= emitted
                continue
            self._books.forget()
            if settled.outcome != "timeout":
                settled = runner.failed(claimed, "error", BROKEN, settled.started_at, settled.duration)
            self._settle_apart(settled, done)

    def _settle_apart(self, settled: Settled, done: Done) -> None:
        self._db.execute(BEGIN)
        settle(self._db, settled, self._books, self._routing.skipping)
        self._commit()
        done.settled.append(settled)

    def _after_a_refusal(self, claimed: Claimed, runner: Runner, begun: int, now: int, done: Done) -> None:
        """A full disk is no fault of the handler's; what it alone is refused again and again fails as any attempt."""
        error, who = self._refused, (claimed.event.seq, claimed.target, claimed.run)
        if error is not None and self._blame.is_own(who, error):
            self._settle_apart(runner.failed(claimed, "error", own_fault(error), begun, now - begun), done)
        else:
            self._put_off(claimed, now, done)
            self._blame.spared(who)

    def _put_off(self, claimed: Claimed, now: int, done: Done) -> None:
        """What the disk refused even to this one alone is tried again later; others go on meanwhile."""
        self._db.execute(BEGIN)
        put_off(self._db, claimed, now + REFUSED_REST, now, self._books)
        self._commit()
        done.put_off.append(claimed)

    def _run_one(self, claimed: Claimed, runner: Runner, now: int) -> tuple[Settled | None, set[str]]:
        """One handler under a savepoint: what it wrote stays only if it is done. None: the disk refused what it wrote,
        and the transaction is rolled back."""
        db, books = self._db, self._books
        before, books.entries = books.entries, Entries()
        db.execute(SAVEPOINT)
        event = claimed.event
        suffix = run_suffix(event.run) if event.again else ""
        view = HandlerTransaction(db, self._guard, books, self._routing, parent=event.seq, now=now, suffix=suffix)
        hold_to(self._guard, self.sync_timeout)
        self._busy.begin("handler", target=claimed.target, seq=event.seq)
        try:
            settled = runner.run(claimed, view)
        except BaseException as error:  # noqa: BLE001  # the runner's own fault must not hold its neighbours up
            settled = runner.failed(claimed, "error", f"the outcome cannot be told: {type(error).__name__}", now, 0)
        finally:
            self._busy.end()
            view.end()
        if view.refused is not None:
            roll_back(db, books)
            self._refused = view.refused
            self._warn(claimed, view.refused)
            return None, set()
        if not db.in_transaction:
            return settled, set()
        kept = settled.state == "done" and current(db, settled)  # effects without their mark would come twice
        if kept:
            before.update(books.entries)
        else:
            db.execute(ROLLBACK_TO)
        db.execute(RELEASE)
        books.entries = before
        return settled, view.targets if kept else set()

    def _warn(self, claimed: Claimed, error: sqlite3.Error) -> None:
        line = f"handler put off target={claimed.target} seq={claimed.event.seq}: {unwritten(error)}"
        self._warnings.say(time.monotonic(), claimed.target, line)

    def _commit(self) -> None:
        self._books.save(self._db)
        self._db.execute(COMMIT)

    def _takes_commit(self) -> bool:
        """Commit, unless the disk refuses that: then nothing of it is kept."""
        try:
            self._commit()
        except sqlite3.Error as error:
            if not is_refused(error):
                raise
            roll_back(self._db, self._books)
            self._refused = error
            return False
        return True

    def _keep(self, batch: Sequence[Claimed], done: Done) -> None:
        """The file refused a write: what has not been settled is still ours, and is run when the file is well again."""
        ended = {(s.seq, s.target) for s in done.settled} | {(c.event.seq, c.target) for c in done.put_off}
        waiting = {(c.event.seq, c.target) for c in self._held}
        self._held = [c for c in batch if (c.event.seq, c.target) not in ended | waiting] + self._held
