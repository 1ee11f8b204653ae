"""Stream: what happens, told as it happens to everybody who listens (server-sent events)."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream as Streamed

from oncebox.errors import Overloaded
from oncebox.operate import filters
from oncebox.operate.api import READ, given_in
from oncebox.operate.shape import Json, event_json, totals_json
from oncebox.recent import Recent
from oncebox.seldom import Seldom
from oncebox.store.figures import totals
from oncebox.store.listing import newest
from oncebox.store.queries import events_by_seq
from oncebox.store.sqlite import SQLiteStore

TICK = 0.25
HEARTBEAT = 15.0
# How long a listener waits before it comes again, in milliseconds.
COME_AGAIN = 2000
EVENTS = 50
MOST = 200
STILL_HERE = b": still here\n\n"

Asked = Request[Any, Any, Any]

log = logging.getLogger("oncebox.operate")


class Mark(msgspec.Struct, frozen=True):
    """How far has been told: what was noted, and the newest event."""

    noted: int = 0
    newest: int = 0


class Stream:
    """Makes each tick once, however many listen: what changed since the one before, and, for those who are new or
    behind, the newest events whole. So nobody needs a queue, and a slow listener costs no memory."""

    def __init__(self, store: SQLiteStore, recent: Recent) -> None:
        self._store = store
        self._recent = recent
        self._faults = Seldom(log, logging.WARNING)
        self._listening = 0
        self._somebody = asyncio.Event()
        self._beat = asyncio.Event()
        self._ended = False
        self._commits = -1
        self._mark: Mark | None = None
        self._totals: object = None
        self._number = 0
        self._tick = b""
        self._whole = -1, b""
        self._making = anyio.Lock()

    async def run(self) -> None:
        """Look for news four times a second while somebody listens, until cancelled."""
        while True:
            await self._somebody.wait()
            await anyio.sleep(TICK)
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001  # listeners show what they have; the next look may succeed
                line = f"stream: nothing can be told just now: {type(error).__name__}: {error}"
                self._faults.say(time.monotonic(), type(error).__name__, line)

    def end(self) -> None:
        """Nothing more is told: the server stops."""
        self._ended = True
        self._wake()

    def full(self) -> bool:
        """Are there as many listeners as there may be?"""
        return self._listening >= MOST

    async def listen(self, last: str = "") -> AsyncIterator[bytes]:
        """What to send to one listener; `last` is the id of the tick that it heard before it came again."""
        number = self._read(last)
        self._listening += 1
        self._somebody.set()
        try:
            yield b"retry: %d\n\n" % COME_AGAIN
            while not self._ended:
                if number == self._number:
                    if not await self._beats():
                        yield STILL_HERE
                elif number == self._number - 1 and self._tick:
                    number, told = self._number, self._tick
                    yield told
                else:
                    number, told = await self._newest()
                    yield told
        finally:
            self._listening -= 1
            if not self._listening:
                self._somebody.clear()
                self._tick, self._whole = b"", (-1, b"")

    async def _look(self) -> None:
        """Is there anything to tell?"""
        commits, since = self._store.books.commits, self._mark
        if since is None or commits == self._commits:
            return
        mark, totals, events = await self._see(since)
        self._commits, self._mark = commits, mark
        if events or totals != self._totals:
            self._number += 1
            self._totals = totals
            self._tick = self._framed(self._number, totals, events)
            self._wake()

    async def _beats(self) -> bool:
        """Wait for the next tick; False: none came for a while."""
        with anyio.move_on_after(HEARTBEAT):
            await self._beat.wait()
            return True
        return False

    async def _newest(self) -> tuple[int, bytes]:
        """The newest events whole, made once between two ticks, and the tick that they go on from: what comes
        meanwhile is told again by the next one."""
        async with self._making:
            number, commits = self._number, self._store.books.commits
            if self._whole[0] != number:
                mark, totals, events = await self._see(Mark())
                if self._mark is None:
                    self._mark, self._totals, self._commits = mark, totals, commits
                self._whole = number, self._framed(number, totals, events)
            return self._whole

    async def _see(self, since: Mark) -> tuple[Mark, Json, list[Json]]:
        """What is new after a mark, and the mark of now."""
        noted = self._recent.mark
        changed = self._recent.since(since.noted)

        def query(db: Any) -> tuple[Mark, Json, list[Json]]:
            fresh = newest(db, since.newest, EVENTS)
            mark = Mark(noted, max([since.newest, *fresh]))
            events = events_by_seq(db, among(changed, fresh, EVENTS))
            return mark, totals_json(totals(db)), [event_json(one) for one in events]

        return await self._store.read(query)

    def _framed(self, number: int, totals: Json, events: list[Json]) -> bytes:
        data = msgspec.json.encode({"totals": totals, "events": events})
        return b"id: %s.%x\nevent: tick\ndata: %s\n\n" % (self._store.boot.encode(), number, data)

    def _read(self, last: str) -> int | None:
        """The number in an id of this process; None for any other: those begin anew."""
        found = re.fullmatch(rf"{self._store.boot}\.([0-9a-f]{{1,15}})", last)
        number = None if found is None or self._mark is None else int(found[1], 16)
        return None if number is None or number > self._number else number

    def _wake(self) -> None:
        self._beat.set()
        self._beat = asyncio.Event()


def among(changed: Sequence[int], fresh: Sequence[int], room: int) -> list[int]:
    """Of what changed and what is new, both newest first, as much as there is room for: half of it for each, and what
    one leaves for the other; by number, newest first."""
    first = list(dict.fromkeys([*changed[: room // 2], *fresh, *changed]))
    return sorted(first[:room], reverse=True)


def create_stream_routes(stream: Stream) -> list[HTTPRouteHandler]:
    """The route of the stream."""

    @get("/stream", opt=READ, summary="Server-sent events: totals and the newest 50 changed, at most 4 a second")
    async def listen(request: Asked) -> Streamed:
        filters.check_names(given_in(request), ())
        if stream.full():
            raise Overloaded(f"{MOST} listen already; close some, or ask /api/events from time to time", 30)
        return Streamed(
            stream.listen(request.headers.get("last-event-id", "")),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    return [listen]
