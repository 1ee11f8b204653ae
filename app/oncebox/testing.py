"""Testing: an inbox for those who test their handlers. The real thing on a file of its own, of which nothing moves by
itself: what is received waits for `drain`, and time stands still until `advance`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.from_thread import start_blocking_portal

from oncebox.accept.door import Door
from oncebox.accept.doors import compile_door
from oncebox.accept.incoming import Incoming
from oncebox.accept.key import check_id
from oncebox.accept.presets import PRESETS
from oncebox.clock import wall_clock
from oncebox.config import Config, MissingId, Source, load
from oncebox.content import written
from oncebox.drain.drain import Drain
from oncebox.drain.killing import run_unsettled
from oncebox.duration import seconds
from oncebox.model import Arrival, Event, instant, unix
from oncebox.operate.feeder import Feeder
from oncebox.operate.rerunning import OneOrder, rerun_event
from oncebox.server import Opened, opened
from oncebox.store.choice import Choice
from oncebox.store.history import events
from oncebox.store.queries import DeliveryRow, events_by_seq
from oncebox.store.reruns import open_reruns

__all__ = ["Delivery", "Inbox"]

T = TypeVar("T")

FREELY = Source(id="body:/id", type="body:/type", unsigned=True, on_missing_id=MissingId("unique"))
# A file that is thrown away outlives no power cut.
DURABILITY = "normal"
ONCE_MORE = 0.005
GRACE = 1.0


class Delivery(msgspec.Struct, frozen=True):
    """How an event fares at one target. `state` is pending, running, parked, done or dead; `due` is when the next
    attempt may start, if there is one to come."""

    target: str
    state: str
    run: int
    attempts: int
    outcome: str | None
    error: str | None
    due: datetime | None


class Inbox:
    """An inbox in a temporary folder, for `with`. Every method waits until what it does has been done.

    `handlers` are modules, importable from the folder that the test runs in; any source may be received from, by the
    preset of its name or with `id` and `type` in a JSON body. With `config`, a `litestar.toml`, it is as that says,
    targets included, but for the file. Signatures are not asked for. Time starts at `at` (else now).
    """

    def __init__(
        self,
        *,
        handlers: str | Sequence[str] = (),
        config: str | Path | None = None,
        at: datetime | None = None,
    ) -> None:
        if bool(handlers) == (config is not None):
            raise TypeError('Inbox takes handlers="module" or config="litestar.toml", one of the two')
        self._modules = (handlers,) if isinstance(handlers, str) else tuple(handlers)
        self._config = None if config is None else Path(config)
        self._now = wall_clock() if at is None else unix(at)
        self._around = ExitStack()
        self._life = ExitStack()
        self._doors: dict[str, Door] = {}

    def __enter__(self) -> Inbox:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="oncebox-")))
            self._settings = self._configured(folder / "inbox.db")
            self._portal = stack.enter_context(start_blocking_portal())
            self._start()
            self._around = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._around:
            self._life.close()

    def receive(
        self,
        source: str,
        body: object = b"",
        *,
        id: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Event:
        """What a sender sends: bytes, text, or plain values as JSON. The event that it is, which may have been there
        before; of a batch the first. `id` and `type` say what the request does not. Raises Rejected with the reason."""
        return self._portal.call(lambda: self._receive(source, body, id, type, dict(headers or {})))

    def drain(self, within: float = 30.0) -> None:
        """Process until nothing is due, what handlers emit included. Raises TimeoutError after so many seconds."""
        self._portal.call(lambda: self._drain(within))

    def rows(self, sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, read-only."""
        return self._read(lambda db: db.execute(sql, tuple(params)).fetchall())

    def events(self, source: str | None = None) -> list[Event]:
        """The events of a source, or all, oldest first."""
        return self._read(lambda db: events(db, Choice(source=source)))

    def delivery(self, event: Event, target: str) -> Delivery:
        """How an event fares at a target. Raises LookupError where it has no delivery."""
        found = self._read(lambda db: events_by_seq(db, [event.seq]))
        rows = {row.target: row for one in found for row in one.deliveries}
        if target not in rows:
            there = f"it has: {', '.join(rows)}" if rows else "it has none"
            raise LookupError(f"event {event.seq} ({event.source} {event.id}) has no delivery to {target}; {there}")
        return _delivery(rows[target])

    def advance(self, duration: str | timedelta) -> None:
        """Let so much time pass, such as "5s". What comes due thereby waits for `drain`."""
        passed = duration if isinstance(duration, timedelta) else timedelta(seconds=seconds(duration))
        self._now += passed // timedelta(microseconds=1)

    def rerun(self, event: Event, *, to: str | Sequence[str] = (), again: bool = False) -> None:
        """Have an event run again at the next `drain`, as `oncebox rerun` does. Raises Rejected with the reason."""
        order = OneOrder(to=[to] if isinstance(to, str) else list(to), again=again)
        self._portal.call(lambda: self._rerun(event.seq, order))

    def crash(self) -> None:
        """Kill the process when the handlers of all that is due have done their work and none of it is settled, and
        start it again: what they wrote with `db` is gone, whatever else they did has happened, and will happen again.
        As in a real one, what was running then runs alone first; only that dies if it crashes again."""
        self._portal.call(lambda: run_unsettled(self._it.store, self._it.handlers, self._it.targets, self._clock))
        self._life.close()
        self._start()

    def _configured(self, path: Path) -> Config:
        if self._config is None:
            config = Config(handlers=self._modules, folder=Path.cwd())
        else:
            config = load(self._config, environ=os.environ, overrides={})
        kept = msgspec.structs.replace(config.store, path=path, durability=DURABILITY)
        return msgspec.structs.replace(config, store=kept)

    def _start(self) -> None:
        with ExitStack() as stack:
            started = self._portal.wrap_async_context_manager(opened(self._settings, self._clock))
            self._it: Opened = stack.enter_context(started)
            names = self._it.handlers.names
            self._portal.call(lambda: self._it.store.recover(names, self._clock()))
            self._life = stack.pop_all()

    def _clock(self) -> int:
        return self._now

    def _read(self, query: Callable[[Any], T]) -> T:
        return self._portal.call(lambda: self._it.store.read(query))

    async def _receive(
        self, source: str, body: object, id: str | None, type: str | None, headers: dict[str, str]
    ) -> Event:
        data, content_type = written(body)
        sent = {"content-type": content_type} | {name.lower(): value for name, value in headers.items()}
        door = self._door(source)
        if id is not None:
            check_id(id, "of the test")
            door = msgspec.structs.replace(door, on_missing="unique")
        request = Incoming("POST", f"/in/{source}", "", sent, frozenset(), data, data, self._clock())
        arrivals = door.arrivals(door.open(request), door.unverified.scheme)
        stored = await self._it.store.accept([_named(one, id, type) for one in arrivals])
        (event,) = await self._it.store.read(lambda db: events(db, Choice(seqs=(stored[0].seq,))))
        return event

    def _door(self, source: str) -> Door:
        door = self._it.inbox.doors.get(source) or self._doors.get(source)
        if door is None:
            by = Source(preset=source, unsigned=True) if source in PRESETS and PRESETS[source].id else FREELY
            door = self._doors[source] = compile_door(source, by, self._settings.server.max_body)
        return door.trusting()

    async def _drain(self, within: float) -> None:
        drain, feeder = self._it.drain(jitter=lambda: 0.0), Feeder(self._it.store, self._clock)
        try:
            with anyio.fail_after(within):
                async with anyio.create_task_group() as group:
                    group.start_soon(drain.run)
                    group.start_soon(feeder.run)
                    try:
                        await self._until_idle(drain)
                    finally:
                        with anyio.CancelScope(shield=True):
                            await drain.stop(GRACE)
                        group.cancel_scope.cancel()
        except TimeoutError:
            raise TimeoutError(f"something still runs, or is still due, after {within:g} s") from None

    async def _until_idle(self, drain: Drain) -> None:
        await drain.idle()
        while await self._it.store.read(open_reruns):
            await anyio.sleep(ONCE_MORE)
            await drain.idle()

    async def _rerun(self, seq: int, order: OneOrder) -> None:
        names = [*self._it.handlers.names, *self._settings.targets]
        await rerun_event(self._it.store, seq, order, names, who="a test", now=self._clock())


def _named(arrival: Arrival, id: str | None, type: str | None) -> Arrival:
    if id is not None:
        arrival = msgspec.structs.replace(arrival, id=id, window=0)
    return arrival if type is None else msgspec.structs.replace(arrival, type=type)


def _delivery(row: DeliveryRow) -> Delivery:
    due = instant(row.due) if row.state == "pending" else None
    return Delivery(row.target, row.state, row.run, row.attempts, row.outcome, row.error, due)
