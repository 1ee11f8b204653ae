"""Server: everything put together and kept running: the store, the inbox before it, the drain behind it."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from importlib.metadata import version

import anyio
import msgspec
from litestar import Litestar
from litestar import Router as Paths
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from oncebox.accept.doors import compile_doors
from oncebox.accept.inbox import Inbox
from oncebox.accept.ingress import create_ingress
from oncebox.clock import Clock
from oncebox.config import Config
from oncebox.drain.configured import configured, signing_keys
from oncebox.drain.drain import Drain, set_up
from oncebox.drain.http import open_client
from oncebox.drain.load import Handlers, load_handlers
from oncebox.errors import ConfigError
from oncebox.operate.api import create_api
from oncebox.operate.failure import EXCEPTION_HANDLERS
from oncebox.operate.feeder import Feeder
from oncebox.operate.guard import MAY, create_guard
from oncebox.operate.mend import create_rerun_routes, create_target_routes
from oncebox.operate.refused import create_refused_routes
from oncebox.operate.targets import Known
from oncebox.route import Route, Router, compile_router, internal_sources
from oncebox.store.settles import pass_dead
from oncebox.store.sqlite import Options, SQLiteStore, open_store
from oncebox.watch import Watch

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


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Parts]:
    """Open the file and process what is in it for as long as the block lasts; then finish and close.

    Everything that can be wrong with the configuration is found before the file is touched. Raises OnceboxError.
    """
    doors = compile_doors(config)
    handlers = load(config)
    routes = all_routes(config, handlers)
    router = route_by(routes)
    skipped = skipping(config, handlers)
    clock = Clock()
    drains: list[Drain] = []

    def woken(targets: set[str]) -> None:
        for drain in drains:
            drain.wake(targets)

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            open_store(
                config.store.path,
                router=router,
                internal=internal(config, routes),
                keeps_dead=keeps_dead(config),
                skipping=skipped,
                woken=woken,
                options=store_options(config),
            )
        )
        await set_up(store, handlers, clock)
        await store.change(lambda db, books: pass_dead(db, skipped, clock(), books))
        client = await stack.enter_async_context(open_client())
        drain = Drain(store, handlers, targets=configured(config, client, clock, os.environ), now=clock)
        drains.append(drain)
        inbox, feeder = Inbox(doors, store, clock), Feeder(store, clock)
        parts = Parts(config, handlers, store, inbox, drain, Watch(store, drain), feeder)
        await stack.enter_async_context(_at_work(parts))
        yield parts


@asynccontextmanager
async def _at_work(parts: Parts) -> AsyncIterator[None]:
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        for work in (parts.drain.run, parts.inbox.refusals.run, parts.watch.run, parts.feeder.run):
            group.start_soon(work)
        try:
            yield
        except Exception as error:  # noqa: BLE001  # raised below, as itself and not in a group of one
            failure = error
        finally:
            with anyio.CancelScope(shield=True):
                await parts.drain.stop(parts.config.server.grace / 2)
                await parts.inbox.refusals.flush()
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def load(config: Config) -> Handlers:
    """The handlers that the configuration names. Raises HandlerError, ConfigError; for a target's secret, too."""
    signing_keys(config)
    return load_handlers(config.handlers, config.folder, taken=config.targets)


def all_routes(config: Config, handlers: Handlers) -> list[Route]:
    """The handlers' own routes and the configured ones. Raises ConfigError for a target that nobody is."""
    known = [*handlers.names, *config.targets]
    for number, route in enumerate(config.routes):
        for target in route.to:
            if target not in known:
                close = get_close_matches(target, known, 1)
                hint = f'; did you mean "{close[0]}"?' if close else f"; there are: {', '.join(known) or 'none'}"
                raise ConfigError(f'routes[{number}].to: there is no target or handler "{target}"{hint}')
    configured = [
        Route(source=r.source, type=r.type, where=r.where, ordered_by=r.ordered_by, to=r.to) for r in config.routes
    ]
    return [*configured, *handlers.routes]


def route_by(routes: list[Route]) -> Router:
    """The compiled routes. Raises ConfigError for a pointer or a value that no JSON has."""
    try:
        return compile_router(routes)
    except ValueError as error:
        raise ConfigError(f"routes: {error}") from None


def internal(config: Config, routes: list[Route]) -> frozenset[str]:
    """The sources that handlers may emit into."""
    declared = [name for name, source in config.sources.items() if source.internal]
    return internal_sources(routes, declared=declared, receiving=set(config.sources) - set(declared))


def skipping(config: Config, handlers: Handlers) -> frozenset[str]:
    """The targets whose order goes on past a dead event. Raises ConfigError where routes disagree about one."""
    ordered = [route for route in config.routes if route.ordered_by]
    skips = {target for route in ordered if route.on_dead == "skip" for target in route.to}
    holds = {target for route in ordered if route.on_dead == "hold" for target in route.to}
    holds |= {handler.name for handler in handlers.handlers if handler.route.ordered_by is not None}
    if skips & holds:
        name = min(skips & holds)
        raise ConfigError(
            f'routes.on_dead: target "{name}" is told to skip a dead event and to hold for it; its keys have one '
            "order, so say the same in each ordered route to it (a handler with ordered_by holds)"
        )
    return frozenset(skips)


def keeps_dead(config: Config) -> frozenset[str]:
    """The sources whose repeats do not revive what is dead."""
    return frozenset(name for name, source in config.sources.items() if source.on_replay_of_dead == "keep")


def known_targets(config: Config, handlers: Handlers) -> list[Known]:
    """Every target and its kind."""
    configured = [Known(name, "url" if target.url else "command") for name, target in config.targets.items()]
    return [*(Known(name, "handler") for name in handlers.names), *configured]


def store_options(config: Config) -> Options:
    """How the file is held, as configured."""
    return Options(
        name=config.server.name,
        queue=config.server.queue,
        checkpoint=config.store.checkpoint,
        durability=config.store.durability,
        least=lambda disk: min(config.store.min_free.bytes_of(disk), disk // 20),
    )


def create_app(parts: Parts) -> Litestar:
    """The HTTP surface of a running inbox."""
    config, store = parts.config, parts.store
    known = known_targets(config, parts.handlers)
    more = [
        *create_refused_routes(store, parts.inbox.again),
        *create_rerun_routes(store, known, parts.feeder.ring),
        *create_target_routes(config, store, known, lambda: dict.fromkeys(parts.drain.stuck(), "stuck")),
    ]
    return Litestar(
        [create_ingress(parts.inbox), *create_api(config, store, parts.watch.reasons, more)],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=describe(parts.config),
        logging_config=None,
    )


def describe(config: Config) -> OpenAPIConfig:
    """OpenAPI at /schema/openapi.json, for those who may read."""
    router = Paths("/schema", route_handlers=[], guards=[create_guard(config)], opt={MAY: "read"})
    return OpenAPIConfig(
        title="Oncebox", version=version("oncebox"), openapi_router=router, render_plugins=[JsonRenderPlugin()]
    )
