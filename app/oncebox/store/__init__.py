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

It promises neither shared transactions, nor strictly growing times, nor a speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from oncebox.model import Arrival, Claimed, Refused, Settled, StagedWrites, Stored

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


class Slice(Protocol):
    """What one slice of transactional work came to."""

    settled: list[Settled]
    more: bool


class Store(Protocol):
    """One store, opened by this process alone."""

    instance: str
    boot: str

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Stored]:
        """Store the arrivals or find the ones they repeat. Raises Overloaded, StorageFull, IdConflict."""
        ...

    async def claim(self, target: str, limit: int, now: int, since: int = 0) -> list[Claimed]:
        """Mark up to `limit` due deliveries of a target as running, its sources in turn, live ones before reruns. With
        `since` only live ones that are due since then."""
        ...

    async def hasten(self, target: str, seqs: Sequence[int]) -> None:
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
        """Run one slice (about 5 ms) of due deliveries of transactional targets. `more`: something is still due."""
        ...

    async def process_alone(self, suspect: Claimed, runner: Runner, now: Callable[[], int]) -> Slice:
        """Run one claimed suspect of a transactional target in a transaction of its own."""
        ...

    async def release(self, claimed: Sequence[Claimed], now: int) -> None:
        """Give back deliveries that were claimed and not started; the attempt does not count."""
        ...

    async def release_held(self, now: int) -> None:
        """Give back what the next slice would have run; called once, when the drain stops."""
        ...

    async def next_due(self, targets: Sequence[str]) -> int | None:
        """When the next pending delivery (suspects too) of these targets is due, in unix microseconds."""
        ...

    async def recover(self, python_targets: Sequence[str], now: int) -> int:
        """Make deliveries that a dead process left running pending again; the number of suspects among them."""
        ...

    async def pause(self, target: str, why: str, now: int) -> None:
        """Start nothing more for a target until it is resumed."""
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

    async def write(self, work: Callable[[Transaction], T], now: int = 0) -> T:
        """Run a function in one transaction of its own on the writer: set-up of handlers, writes of a host."""
        ...

    async def read(self, query: Callable[[Any], T]) -> T:
        """Run a short query function on a read-only connection."""
        ...

    async def close(self) -> None:
        """Finish what was asked for, checkpoint, mark the file clean, close."""
        ...
