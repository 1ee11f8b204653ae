"""Server: everything put together and kept running: the store, the inbox before it, the drain behind it."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import msgspec
from litestar import Litestar
from litestar import Router as Paths
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Server
from litestar.types import ASGIApp, Guard

from oncebox.accept.doors import compile_doors
from oncebox.accept.inbox import Inbox
from oncebox.accept.ingress import Front, create_ingress
from oncebox.clock import Clock, wall_clock
from oncebox.config import Config
from oncebox.drain.configured import configured
from oncebox.drain.drain import Drain, set_up
from oncebox.drain.http import open_client
from oncebox.drain.load import Handlers
from oncebox.drain.target import Target
from oncebox.errors import StoreError
from oncebox.model import MICROSECONDS
from oncebox.operate.api import create_api
from oncebox.operate.failure import EXCEPTION_HANDLERS
from oncebox.operate.feeder import Feeder
from oncebox.operate.guard import MAY, create_guard
from oncebox.operate.mend import create_rerun_routes, create_target_routes
from oncebox.operate.openapi import Described, OpenAPI
from oncebox.operate.operations import create_operation_routes
from oncebox.operate.refused import create_refused_routes
from oncebox.operate.stream import Stream, create_stream_routes
from oncebox.perform.decision import decide
from oncebox.perform.desk import Desk
from oncebox.perform.ingress import in_front_of
from oncebox.perform.operation import Operation, Operations, load_operations
from oncebox.perform.performer import Performer
from oncebox.route import Route
from oncebox.store.faults import is_busy
from oncebox.store.settles import pass_dead
from oncebox.store.sqlite import SQLiteStore, open_store
from oncebox.store.waits import bring_forward_from
from oncebox.watch import Watch
from oncebox.wiring import (
    all_routes,
    callers,
    internal,
    keeps_dead,
    known_targets,
    load,
    route_by,
    sharing,
    skipping,
    store_options,
    target_names,
    unreached,
)

log = logging.getLogger("oncebox.server")


class Parts(msgspec.Struct, frozen=True):
    """What runs, for those who put an application around it."""

    config: Config
    handlers: Handlers
    store: SQLiteStore
    inbox: Inbox
    drain: Drain
    watch: Watch
    feeder: Feeder
    stream: Stream
    desk: Desk
    clock: Clock


class Opened(msgspec.Struct, frozen=True):
    """The open file and what stands before it. Nothing is processed without a drain; `drains` are those that wake."""

    config: Config
    handlers: Handlers
    operations: Operations
    routes: list[Route]
    store: SQLiteStore
    inbox: Inbox
    targets: list[Target]
    clock: Clock
    drains: list[Drain]

    def drain(self, jitter: Callable[[], float] = random.random) -> Drain:
        """A drain that is woken for what is stored from now on; the one before it is not any more."""
        reach = sharing(self.config, self.routes)
        made = Drain(self.store, self.handlers, targets=self.targets, now=self.clock, jitter=jitter, reach=reach)
        self.drains[:] = [made]
        return made


@asynccontextmanager
async def opened(config: Config, wall: Callable[[], int] = wall_clock) -> AsyncIterator[Opened]:
    """Open the file for as long as the block lasts; then close it.

    Everything that can be wrong with the configuration is found before the file is touched. `wall` gives unix
    microseconds. Raises OnceboxError.
    """
    doors = compile_doors(config)
    handlers = load(config)
    operations = load_operations(config.handlers)
    routes = all_routes(config, handlers)
    router = route_by(routes)
    skipped = skipping(config, handlers)
    for sentence in unreached(config, handlers, routes):
        log.warning("configuration %s", sentence)
    clock = Clock(wall)
    drains: list[Drain] = []

    def woken(targets: set[str]) -> None:
        for drain in drains:
            drain.wake(targets)

    async with AsyncExitStack() as stack:
        with naming_the_holder(config.store.path):
            store = await stack.enter_async_context(
                open_store(
                    config.store.path,
                    router=router,
                    internal=internal(config, routes),
                    keeps_dead=keeps_dead(config),
                    skipping=skipped,
                    targets=target_names(config, handlers),
                    woken=woken,
                    options=store_options(config),
                )
            )
            await set_up(store, handlers, clock)
            await let_pass(store, skipped, clock)
            await bring_waits_forward(store, clock)
        client = await stack.enter_async_context(open_client())
        targets = configured(config, client, clock, os.environ)
        inbox = Inbox(doors, store, clock)
        yield Opened(config, handlers, operations, routes, store, inbox, targets, clock, drains)


@asynccontextmanager
async def running(config: Config, wall: Callable[[], int] = wall_clock) -> AsyncIterator[Parts]:
    """Open the file and process what is in it for as long as the block lasts; then finish and close. As `opened`."""
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(opened(config, wall))
        store, clock, drain = found.store, found.clock, found.drain()
        feeder, stream = Feeder(store, clock), Stream(store, drain.recent)
        performer = Performer(found.operations, store, now=clock, keep=config.retention.replies)
        await performer.open()
        desk = Desk(performer, callers(config), limit=config.server.max_body)
        watch = Watch(store, drain, wall)
        parts = Parts(config, found.handlers, store, found.inbox, drain, watch, feeder, stream, desk, clock)
        await stack.enter_async_context(_at_work(parts))
        yield parts


async def let_pass(store: SQLiteStore, skipped: frozenset[str], clock: Clock) -> None:
    """Those that wait behind a dead event of a target that skips it have their turn, and are started."""
    if skipped:
        await store.change(lambda db, books: pass_dead(db, skipped, clock(), books))
        store.writer.tell(set(skipped))


async def bring_waits_forward(store: SQLiteStore, clock: Clock) -> None:
    """If the clock is behind the events that came before, what waits does so no longer for that."""
    back = await store.change(lambda db, _books: bring_forward_from(db, clock()))
    if back:
        log.warning("the clock is %.0f s behind the newest event; what waits was brought forward", back / MICROSECONDS)


@contextmanager
def naming_the_holder(path: Path) -> Iterator[None]:
    """A start that fails because the file is locked says so, whatever it was about to write."""
    try:
        yield
    except Exception as error:
        if not _is_held(error):
            raise
        raise StoreError(
            f"{path}: another program holds the database: a transaction of it is open for writing. Let it commit, or "
            f"close it, and start again; other programs may read this file, and `fuser -v {path}` names them"
        ) from error


def _is_held(error: BaseException | None) -> bool:
    while error is not None and not is_busy(error):
        error = error.__cause__ or error.__context__
    return error is not None


@asynccontextmanager
async def _at_work(parts: Parts) -> AsyncIterator[None]:
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        for work in (parts.drain, parts.inbox.refusals, parts.watch, parts.feeder, parts.stream, parts.desk.performer):
            group.start_soon(work.run)
        try:
            yield
        except Exception as error:  # noqa: BLE001  # raised below, as itself and not in a group of one
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as ending:
                    for ends in (parts.drain, parts.desk.performer):
                        ending.start_soon(ends.stop, parts.config.server.grace / 2)
                await parts.inbox.refusals.flush()
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def create_surface(parts: Parts, *, path: str = "", guards: Sequence[Guard] = ()) -> ASGIApp:
    """The HTTP surface of a running inbox as one ASGI application; `path` is where another application has it, with
    `guards` of its own before what people and programs ask. What senders call is answered before any routing.
    """
    config, store = parts.config, parts.store
    known = known_targets(config, parts.handlers)
    more = [
        *create_refused_routes(store, parts.inbox.again),
        *create_rerun_routes(store, known, parts.feeder.ring),
        *create_target_routes(config, store, known, parts.drain.conditions),
        *create_stream_routes(parts.stream),
        *create_operation_routes(store, decide, parts.clock),
    ]
    every: list[Guard] = [create_guard(config), *guards]
    app = Litestar(
        [create_ingress(parts.inbox), *create_api(config, store, parts.watch.reasons, more, guards=every)],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=describe(every, path, parts.desk.performer.operations),
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )
    return Front(in_front_of(app, parts.desk), parts.inbox, path=f"{path}/in")


def describe(guards: Sequence[Guard], path: str, operations: Operations) -> OpenAPIConfig:
    """OpenAPI at /schema/openapi.json, for those who may read."""
    router = Paths("/schema", route_handlers=[], guards=guards, opt={MAY: "read"})
    return OpenAPIConfig(
        title="Oncebox",
        version=version("oncebox"),
        openapi_router=router,
        render_plugins=[OpenAPI([_described(one) for one in operations.values()])],
        servers=[Server(url=path or "/")],
    )


def _described(one: Operation[..., Any]) -> Described:
    return Described(
        name=one.name, methods=one.methods, description=one.description, public=one.public, shape=one.shape
    )
