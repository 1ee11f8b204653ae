"""File: the Store in one file: who does what it promises, put together over one connection that writes."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import aiosqlite
import msgspec

from oncebox.model import Arrival, Claimed, Refused, Settled, StagedWrites, Stored
from oncebox.store import Batch, Runner, Share, Transaction, ends, refusals
from oncebox.store.blame import Blame
from oncebox.store.books import Books
from oncebox.store.busy import Busy
from oncebox.store.calling import Calling
from oncebox.store.care import Care
from oncebox.store.claims import Claims, give_back, hasten, unreached
from oncebox.store.edge import translated
from oncebox.store.ending import end_patiently
from oncebox.store.function import run_function
from oncebox.store.guard import Guard
from oncebox.store.lock import Lock
from oncebox.store.migrations import connect
from oncebox.store.options import Options
from oncebox.store.pauses import Pauses
from oncebox.store.performing import Performing
from oncebox.store.readers import Readers
from oncebox.store.recovery import recover
from oncebox.store.reruns import suffix
from oncebox.store.routing import Routing
from oncebox.store.settles import current, settle
from oncebox.store.slices import Done, Slices
from oncebox.store.staged import Staged
from oncebox.store.statement import BEGIN, COMMIT, own
from oncebox.store.thread import on_thread
from oncebox.store.transaction import HandlerTransaction, hold_to
from oncebox.store.writer import Writer

T = TypeVar("T")

# Below the half minute after which a process whose writer is held is ended.
WRITE = 25.0


class SQLiteStore:
    """One file, one writer, a few readers. Made by `open_store`."""

    writer: Writer
    # Whether accepts come as fast as they are answered: who works beside them leaves them the time.
    crowded: Callable[[], bool]

    def __init__(self, lock: Lock, routing: Routing) -> None:
        self.lock = lock
        self.path = lock.database
        self.routing = routing
        self.boot = secrets.token_hex(8)
        self.instance = ""
        self.pauses = Pauses()
        self.busy = Busy()
        self._readers = Readers(self.path)

    async def open(self, woken: Callable[[set[str]], None], options: Options) -> None:
        """Open the connections and read the few facts that are kept in memory."""
        self._raw = connect(self.path, options.durability)
        self._db = await aiosqlite.Connection(lambda: self._raw, 64)
        try:
            await on_thread(self._db, self._begin, options)
            await self._readers.open()
        except BaseException:
            await self.close()
            raise
        self.writer = Writer(
            self._db,
            self._raw,
            self.books,
            self.routing,
            queue=options.queue,
            care=self.care,
            performing=self.performing,
            woken=woken,
        )
        self.crowded = self.writer.crowded
        self._staged = Staged(
            self.books, self.guard, self.busy, self.blame, self.writer.tell, sync_timeout=self.slices.sync_timeout
        )
        self.operations = Calling(self.writer, self.books, self._staged, self._view, self.boot)

    def _begin(self, options: Options) -> None:
        facts = dict(self._raw.execute(own("select name, value from meta")).fetchall())
        self.instance = options.name or facts["instance"]
        self.generation = facts["generation"]
        self.clean = bool(facts["clean"])
        self.books = Books(facts["next_seq"])
        self.care = Care(
            self.path,
            self.books,
            self.routing,
            checkpoint=options.checkpoint,
            least=options.least,
            wal_max=options.wal_max,
        )
        self.blame = Blame(self.care.shortage)
        self.pauses.load(self._raw)
        self.guard = Guard(self._raw)
        self.claims = Claims(self.boot, self.instance, self.routing)
        timeout = options.sync_timeout
        self.slices = Slices(
            self._raw,
            self.claims,
            self.books,
            self.routing,
            self.guard,
            self.is_paused,
            self.busy,
            self.blame,
            sync_timeout=timeout,
        )
        self.performing = Performing(self._raw, self.books, self.guard, self.routing, self.busy, sync_timeout=timeout)
        self._raw.execute(own("update meta set value = 0 where name = 'clean'"))
        self.lock.announce("", self.boot)

    def accept(self, arrivals: Sequence[Arrival]) -> asyncio.Future[list[Stored]]:
        """Store the arrivals or find the ones they repeat. Raises Overloaded, StorageFull; the future raises them
        too, and IdConflict."""
        return self.writer.accept(arrivals)

    async def claim(self, target: str, limit: int, now: int, since: int = 0, share: Share | None = None) -> Batch:
        """Start up to `limit` due deliveries of a target, its sources in turn (only those due `since` then)."""
        if self.is_paused(target) or limit < 1:
            return Batch()
        return await self.writer.submit(lambda db: self._claim(db, target, limit, now, since, share))

    def _claim(
        self, db: sqlite3.Connection, target: str, limit: int, now: int, since: int, share: Share | None
    ) -> Batch:
        """Asked again in its turn: a pause may have come before it."""
        if self.is_paused(target):
            return Batch()
        return self.claims.take(db, target, limit, now, self.books, since, share)

    def _awake(self, targets: Sequence[str]) -> list[str]:
        return [target for target in targets if not self.is_paused(target)]

    async def unreached(self, target: str, now: int, most: int) -> list[int]:
        """Deliveries that wait for another try because their target could not be reached, up to so many."""
        return await self.read(lambda db: unreached(db, target, now, most))

    async def hasten(self, target: str, seqs: Sequence[int], now: int) -> None:
        """The target is back: those of these deliveries that wait for another try are due as of their arrival."""
        await self.writer.submit(lambda db: hasten(db, target, seqs, now))

    async def claim_suspect(self, targets: Sequence[str], now: int) -> Claimed | None:
        """Mark the oldest due delivery that was running when the process died; it must be run alone."""
        return await self.writer.submit(lambda db: self.claims.take_suspect(db, self._awake(targets), now, self.books))

    async def settle(
        self, settled: Settled, staged: StagedWrites | None = None, otherwise: Settled | None = None
    ) -> bool:
        """Write how an attempt ended, with its staged writes or, if they fail, `otherwise`; False: not current."""
        if staged is None or not staged.statements or settled.state != "done":
            return await self.writer.submit(lambda db: settle(db, settled, self.books, self.routing.skipping))
        return await self.writer.slice(lambda db: self._settle_staged(db, settled, staged, otherwise))

    async def settle_all(self, settled: Sequence[Settled]) -> list[bool]:
        """Write how several attempts ended, in one transaction; for each whether it was the current one."""
        skipping = self.routing.skipping
        return await self.writer.submit(lambda db: ends.settle_all(db, settled, self.books, skipping))

    def _settle_staged(
        self, db: sqlite3.Connection, settled: Settled, staged: StagedWrites, otherwise: Settled | None
    ) -> bool:
        def end(why: str) -> None:
            outcome = msgspec.structs.replace(otherwise or settled, error=why) if why else settled
            settle(db, outcome, self.books, self.routing.skipping)

        return self._staged.commit(
            db,
            staged,
            lambda: current(db, settled),
            lambda: self._view(db, settled.seq, settled.now, suffix(db, settled)),
            end,
            target=settled.target,
            seq=settled.seq,
        )

    async def process(self, targets: Sequence[str], runner: Runner, now: Callable[[], int]) -> Done:
        """Run one slice (about 5 ms) of due deliveries of transactional targets. `more`: something is still due."""
        return await self._slice(lambda: self.slices.process(targets, runner, now, crowded=self.crowded()))

    async def process_alone(self, suspect: Claimed, runner: Runner, now: Callable[[], int]) -> Done:
        """Run one claimed suspect of a transactional target in a transaction of its own."""
        return await self._slice(lambda: self.slices.run_alone(suspect, runner, now))

    async def _slice(self, work: Callable[[], Done]) -> Done:
        """What was emitted and committed is told although the file refused what came after it."""
        try:
            return await self.writer.slice(lambda _: work())
        finally:
            self.writer.tell(self.slices.told())

    async def release(self, claimed: Sequence[Claimed], now: int) -> None:
        """Give back deliveries that were claimed and not started; the attempt does not count."""
        await self.writer.submit(lambda db: give_back(db, claimed, now, self.books))

    async def release_held(self, now: int) -> None:
        """Give back what the next slice would have run."""
        await self.writer.slice(lambda _: self.slices.give_back(now))

    async def next_due(self, targets: Sequence[str], share: Share | None = None) -> int | None:
        """When the next pending delivery (suspects too) of these targets is due, in unix microseconds."""
        return await self.writer.submit(lambda db: self.claims.next_due(db, self._awake(targets), share))

    async def recover(self, python_targets: Sequence[str], now: int) -> int:
        """Make deliveries that a dead process left running pending again; the number of suspects among them."""
        skipping = self.routing.skipping
        return await self.writer.submit(lambda db: recover(db, self.boot, python_targets, now, self.books, skipping))

    async def pause(self, target: str, why: str, now: int) -> None:
        """Start nothing more for a target until it is resumed."""
        await self.change(lambda db, _: self.pauses.add(db, target, why, now))
        self.writer.tell({target})

    def is_paused(self, target: str) -> bool:
        """Whether a target is paused, out of memory."""
        return target in self.pauses

    async def resume(self, target: str) -> bool:
        """Undo a pause; False if there was none."""
        resumed = await self.change(lambda db, _: self.pauses.remove(db, target))
        self.writer.tell({target})
        return resumed

    async def paused(self) -> dict[str, str]:
        """Paused targets and why."""
        return self.pauses.reasons()

    async def refuse(self, refused: Sequence[Refused], counts: Mapping[tuple[str, str], int], now: int) -> None:
        """Keep refused requests in their bounded ring and add (source, slug) counts to the books."""
        await self.writer.submit(lambda db: refusals.keep(db, refused, counts, now, self.books))

    async def write(self, work: Callable[[Transaction], T], now: int, *, within: float = WRITE) -> T:
        """Run a function in one transaction of its own on the writer: set-up of handlers, writes of a host. After
        `within` seconds its running SQL is interrupted, and nothing of it is kept."""
        return await self.writer.slice(lambda db: self._write(db, work, now, within))

    def _write(self, db: sqlite3.Connection, work: Callable[[Transaction], T], now: int, within: float) -> T:
        def view() -> HandlerTransaction:
            opened = self._view(db, None, now)
            hold_to(self.guard, within)
            return opened

        return run_function(db, work, view, self.books, self.busy, self.writer.tell)

    async def change(self, work: Callable[[sqlite3.Connection, Books], T]) -> T:
        """Run a change of our own in one transaction, behind accepts and settles."""

        def change(db: sqlite3.Connection) -> T:
            with self.pauses.committing():
                db.execute(BEGIN)
                result = work(db, self.books)
                self.books.save(db)
                db.execute(COMMIT)
            return result

        return await self.writer.slice(change)

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Run a short query function on a read-only connection."""
        with translated():
            return await self._readers.read(query)

    async def close(self) -> None:
        """Write what waits, checkpoint, mark the file clean, close; the readers go first."""
        try:
            await self._readers.close()
            await end_patiently(self._db, self._raw, self.care, self.books)
        finally:
            await self._db.close()

    def _view(self, db: sqlite3.Connection, parent: int | None, now: int, suffix: str = "") -> HandlerTransaction:
        self.guard.deadline = float("inf")
        return HandlerTransaction(db, self.guard, self.books, self.routing, parent=parent, now=now, suffix=suffix)
