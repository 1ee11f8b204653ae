"""The Store: what any store of events must promise, in words and signatures.

1. (source, id) is unique, by the database and for ever: concurrent twins, crashes and pruning change nothing.
2. `accept` returns after the event, its payload and its deliveries are durable, and never before.
3. A replay gets the first call's facts (seq, received_at, reply) and writes nothing that the answer waits for.
4. An accept of several arrivals is all or nothing; one that fails does not fail its neighbours.
5. An attempt is on disk before it starts. A settle applies to the attempt it names and to no other.
6. What a transactional handler writes and emits commits together with its outcome, or not at all.
7. Per (target, order key) deliveries start in the order in which their events committed. There is no global order:
   seq is unique and roughly grows, with gaps; times may step back.
8. `Transaction.execute(sql, params)` takes `?` and gives rows that are already read.
9. A call of an operation is known by (caller, key). One that is performed in the store commits its effects, its events
   and its reply together; one that acts outside is on disk before it starts. A repeat gets the first one's reply.

What an engine raises is told as StoreError, Overloaded or StorageFull, which keep it as their cause.

It promises neither shared transactions, nor strictly growing times, nor a speed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from oncebox.model import Arrival, Call, Claimed, Performed, Refused, Result, Settled, StagedWrites, Stored

T = TypeVar("T")

Params = Sequence[Any]
Row = tuple[Any, ...]


class Transaction(Protocol):
    """What a transactional handler writes with. It commits together with the mark `done`."""

    def execute(self, sql: str, params: Params = ()) -> list[Row]:
        """Run one statement; the rows come back read. Raises ForbiddenSQL for what belongs to the inbox."""
        ...

    def executemany(self, sql: str, params: Iterable[Params]) -> int:
        """Run one statement for each set of parameters; the number of rows changed."""
        ...

    def emit(
        self,
        source: str,
        *,
        id: str,
        type: str | None = None,
        body: object = b"",
        headers: dict[str, str] | None = None,
    ) -> bool:
        """Write a new event into an internal source; False if that id was there already."""
        ...


class Runner(Protocol):
    """How the drain runs one claimed delivery inside a transaction; called on the writer's thread."""

    def run(self, claimed: Claimed, db: Transaction) -> Settled:
        """Run the handler and judge how it ended. Never raises for a fault of the handler's."""
        ...

    def failed(self, claimed: Claimed, outcome: str, why: str, started_at: int, duration: int) -> Settled:
        """Judge an attempt whose transaction did not survive its handler."""
        ...


class Share(Protocol):
    """How much of one claim each source may have. A plain value: it is asked on the writer's thread."""

    def most(self, source: str, *, history: bool = False) -> int:
        """How many deliveries of a source, of new events or of reruns."""
        ...

    def took(self, source: str, count: int, *, history: bool = False) -> Share:
        """What is left when it has got so many."""
        ...


class Batch(list[Claimed]):
    """What one claim took. `cut`: it ended although more may be due that it had room for; the next one goes on."""

    def __init__(self, claimed: Iterable[Claimed] = (), *, cut: bool = False) -> None:
        super().__init__(claimed)
        self.cut = cut


class Slice(Protocol):
    """What one slice of transactional work came to."""

    settled: list[Settled]
    more: bool


# Performs a call inside a transaction, on the writer's thread, as that attempt: its result, and whether it is kept; if
# not, nothing of what it wrote is. Never raises for a fault of the operation's.
Perform = Callable[[Transaction, int], tuple[Result, bool]]


# How an attempt of a call ends: with a result · free, its attempts remembered for the same request · a person decides ·
# free, nothing remembered.
DONE, FAILED, UNKNOWN, FREED = "done", "failed", "unknown", ""


class Ended(msgspec.Struct, frozen=True):
    """How an attempt of a call ended: DONE with a result, or another way and why."""

    state: str
    result: Result | None = None
    why: str = ""


class Operations(Protocol):
    """The calls of operations, by (caller, key)."""

    def perform(self, call: Call, perform: Perform, size: int = 0) -> Awaitable[Performed]:
        """Perform a call in the writer unless it has been made before; `size` is what the request holds in memory.

        It is queued at once, whether or not the answer is waited for. Raises Overloaded, StorageFull; so does the
        waiting, and StoreError.
        """
        ...

    async def begin(self, call: Call) -> Performed:
        """Look a call up and write that it runs if it is new. Raises Overloaded, StorageFull."""
        ...

    async def end(
        self, call: Call, attempt: int, ended: Ended, now: int, staged: StagedWrites | None = None, otherwise: str = ""
    ) -> Ended | None:
        """Write how an attempt ended, with its staged writes in one savepoint; if those fail it ends as `otherwise`
        (unknown), with the reason. What was written; None when the attempt is not the current one."""
        ...

    async def recover(self, retry_safe: Collection[str], now: int) -> tuple[int, int]:
        """To be called before anything is performed: what a dead process left running may run again if its operation
        is one of these, else it is unknown; how many of each."""
        ...

    async def resolve(self, caller: str, key: str, result: Result | None, who: str, now: int) -> bool:
        """Somebody decides of an unknown call: it was done and this is its result, or its key is free. False: it is
        not unknown."""
        ...

    async def expire(self, before: int) -> int:
        """One step of care: remove some of the calls that ended before then; how many. 0: none is left."""
        ...


class Store(Protocol):
    """One store, opened by this process alone."""

    instance: str
    boot: str

    @property
    def operations(self) -> Operations:
        """What it does for operations."""
        ...

    def accept(self, arrivals: Sequence[Arrival]) -> asyncio.Future[list[Stored]]:
        """Store the arrivals or find the ones they repeat. Raises Overloaded, StorageFull; the future raises them
        too, and IdConflict."""
        ...

    async def claim(self, target: str, limit: int, now: int, since: int = 0, share: Share | None = None) -> Batch:
        """Mark up to `limit` due deliveries of a target as running, its sources in turn, live ones before reruns. With
        `since` only live ones that are due since then; with `share` no more of a source than it says.

        It ends early when their bodies come to some megabytes, or when it has set aside very many that cannot be read:
        then it is `cut`. One that is short and not cut says that nothing more is due of what has a share. Once a pause
        is committed it takes nothing.
        """
        ...

    async def unreached(self, target: str, now: int, most: int) -> list[int]:
        """Deliveries that wait for another try because their target could not be reached, up to so many."""
        ...

    async def hasten(self, target: str, seqs: Sequence[int], now: int) -> None:
        """The target is back: those of these deliveries that wait for another try are due as of their arrival."""
        ...

    async def claim_suspect(self, targets: Sequence[str], now: int) -> Claimed | None:
        """Mark the oldest due delivery that was running when the process died; it must be run alone."""
        ...

    async def settle(
        self, settled: Settled, staged: StagedWrites | None = None, otherwise: Settled | None = None
    ) -> bool:
        """Write how an attempt ended, with its staged writes in one savepoint; if those fail, `otherwise` is written
        in its place with the reason. False: the attempt is no longer the current one and nothing was written."""
        ...

    async def settle_all(self, settled: Sequence[Settled]) -> list[bool]:
        """Write how several attempts ended, in one transaction; for each whether it was the current one."""
        ...

    async def process(self, targets: Sequence[str], runner: Runner, now: Callable[[], int]) -> Slice:
        """Run one slice (about 5 ms, less in a crowd) of due deliveries of transactional targets. `more`: something is
        still due. What the disk refuses a handler's own statement is put off by seconds, and does not count."""
        ...

    def crowded(self) -> bool:
        """Whether accepts come as fast as they are answered: who works beside them leaves them the time."""
        ...

    async def process_alone(self, suspect: Claimed, runner: Runner, now: Callable[[], int]) -> Slice:
        """Run one claimed suspect of a transactional target in a transaction of its own; give it back if that is
        paused."""
        ...

    async def release(self, claimed: Sequence[Claimed], now: int) -> None:
        """Give back deliveries that were claimed and not started; the attempt does not count."""
        ...

    async def release_held(self, now: int) -> None:
        """Give back what the next slice would have run; called once, when the drain stops."""
        ...

    async def next_due(self, targets: Sequence[str], share: Share | None = None) -> int | None:
        """When the next pending delivery (suspects too) of these targets is due, in unix microseconds; with `share`
        those of sources that may have nothing are left out."""
        ...

    async def recover(self, python_targets: Sequence[str], now: int) -> int:
        """Make deliveries that a dead process left running pending again; the number of suspects among them."""
        ...

    async def pause(self, target: str, why: str, now: int) -> None:
        """Claim and run in here nothing more for a target until it is resumed; an earlier reason stays. What is
        claimed and has not started is its owner's to give back: see `is_paused`."""
        ...

    def is_paused(self, target: str) -> bool:
        """Whether a target is paused, out of memory: by what has been committed, before `pause` and `resume` return."""
        ...

    async def resume(self, target: str) -> bool:
        """Undo a pause; False if there was none."""
        ...

    async def paused(self) -> dict[str, str]:
        """Paused targets and why."""
        ...

    async def refuse(self, refused: Sequence[Refused], counts: Mapping[tuple[str, str], int], now: int) -> None:
        """Keep refused requests in their bounded ring and add (source, slug) counts to the books."""
        ...

    async def write(self, work: Callable[[Transaction], T], now: int, *, within: float = 25.0) -> T:
        """Run a function in one transaction of its own on the writer: set-up of handlers, writes of a host. After
        `within` seconds its running SQL is interrupted, and nothing of it is kept."""
        ...

    async def read(self, query: Callable[[Any], T]) -> T:
        """Run a short query function on a read-only connection."""
        ...

    async def close(self) -> None:
        """Finish what was asked for, checkpoint, mark the file clean, close."""
        ...
