"""Reload: a changed configuration takes effect without a request being dropped; a bad one changes nothing."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from oncebox.accept.doors import compile_doors
from oncebox.config import Config
from oncebox.errors import ConfigError, OnceboxError
from oncebox.server import Parts, let_pass
from oncebox.wiring import all_routes, callers, internal, keeps_dead, route_by, sharing, skipping, unreached

RESTART = ("handlers", "server", "store", "tokens", "targets")

log = logging.getLogger("oncebox.server")


@asynccontextmanager
async def reloading(parts: Parts, load: Callable[[], Config]) -> AsyncIterator[None]:
    """Reload after each SIGHUP for as long as the block lasts."""
    failure: Exception | None = None
    hung_up = asyncio.Event()
    # Never taken back: between that and what follows here the signal would end the process.
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hung_up.set)
    async with anyio.create_task_group() as group:
        group.start_soon(_obey, hung_up, parts, load)
        try:
            yield
        except Exception as error:  # noqa: BLE001  # raised below, as itself and not in a group of one
            failure = error
        group.cancel_scope.cancel()
    # What follows is the end, which no reload may cut short.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if failure is not None:
        raise failure


async def _obey(hung_up: asyncio.Event, parts: Parts, load: Callable[[], Config]) -> None:
    while True:
        await hung_up.wait()
        hung_up.clear()
        await reload(parts, load)


async def reload(parts: Parts, load: Callable[[], Config]) -> bool:
    """Read the configuration again and exchange sources, secrets and routes. False: it was refused, the old one stays.

    Handler modules and the keys of RESTART are read at start only; the log says so when they differ.
    """
    try:
        config = load()
        if parts.config.path is not None and config.path is None:
            raise ConfigError(f"{parts.config.path}: the file that this server was started with is gone; put it back")
        if parts.config.sources and not config.sources:
            raise ConfigError(f"{config.path}: no source is in it any more; if it is to be so, stop and start again")
        doors = compile_doors(config)
        routes = all_routes(config, parts.handlers)
        router = route_by(routes)
        skipped = skipping(config, parts.handlers)
    except OnceboxError as error:
        log.error("reload refused, the old configuration stays: %s", error)
        return False
    routing = parts.store.routing
    parts.inbox.doors = doors
    parts.desk.callers = callers(config)
    parts.desk.performer.keep = config.retention.replies
    routing.router = router
    routing.internal = internal(config, routes)
    routing.keeps_dead = keeps_dead(config)
    routing.skipping = skipped
    parts.drain.reached(sharing(config, routes))
    await _pass_dead(parts, skipped)
    for sentence in unreached(config, parts.handlers, routes):
        log.warning("configuration %s", sentence)
    later = [key for key in RESTART if getattr(config, key) != getattr(parts.config, key)]
    note = f"; changed, but read at a restart only: {', '.join(later)}" if later else ""
    log.info("reloaded sources=%d routes=%d%s", len(doors), len(routes), note)
    return True


async def _pass_dead(parts: Parts, skipped: frozenset[str]) -> None:
    """What waits behind a dead event goes on. If the file cannot be written now, the next reload or start does it."""
    try:
        await let_pass(parts.store, skipped, parts.clock)
    except Exception as error:  # noqa: BLE001  # of the disk, whatever the store calls it
        log.error("reload: what waits behind dead events is left waiting until the next: %s", error)
