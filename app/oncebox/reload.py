"""Reload: a changed configuration takes effect without a request being dropped; a bad one changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncebox.accept.doors import compile_doors
from oncebox.config import Config
from oncebox.errors import ConfigError, OnceboxError
from oncebox.server import Parts, all_routes, internal, keeps_dead, route_by, skipping

RESTART = ("handlers", "server", "store", "tokens", "targets")

log = logging.getLogger("oncebox.server")


def reload(parts: Parts, load: Callable[[], Config]) -> bool:
    """Read the configuration again and exchange sources, secrets and routes. False: it was refused, the old one stays.

    Handler modules and the keys of RESTART are read at start only; the log says so when they differ.
    """
    try:
        config = load()
        if parts.config.path is not None and config.path is None:
            raise ConfigError(f"{parts.config.path}: the file that this server was started with is gone; put it back")
        doors = compile_doors(config)
        routes = all_routes(config, parts.handlers)
        router = route_by(routes)
        skipped = skipping(config, parts.handlers)
    except OnceboxError as error:
        log.error("reload refused, the old configuration stays: %s", error)
        return False
    parts.inbox.doors = doors
    parts.store.routing.router = router
    parts.store.routing.internal = internal(config, routes)
    parts.store.routing.keeps_dead = keeps_dead(config)
    parts.store.routing.skipping = skipped
    later = [key for key in RESTART if getattr(config, key) != getattr(parts.config, key)]
    note = f"; changed, but read at a restart only: {', '.join(later)}" if later else ""
    log.info("reloaded sources=%d routes=%d%s", len(doors), len(routes), note)
    return True
