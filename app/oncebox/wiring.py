"""Wiring: what the configuration and the handlers say, as the parts of the server take it."""

from __future__ import annotations

from difflib import get_close_matches

from oncebox.config import Config
from oncebox.drain.configured import signing_keys
from oncebox.drain.load import Handlers, load_handlers
from oncebox.errors import ConfigError
from oncebox.listening import Listener, unheard
from oncebox.operate.targets import Known
from oncebox.perform.callers import Callers
from oncebox.route import Route, Router, compile_router, internal_sources, reach
from oncebox.store.options import Options


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


def sharing(config: Config, routes: list[Route]) -> dict[str, frozenset[str]]:
    """By target, the sources whose events may come to it."""
    return reach(routes, {*config.sources, *internal(config, routes)})


def callers(config: Config) -> Callers:
    """Who may call operations."""
    return Callers({name: secret.value for name, secret in config.callers.items()})


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
    return [*(Known(one.name, one.kind) for one in handlers.handlers), *configured]


def target_names(config: Config, handlers: Handlers) -> frozenset[str]:
    """The targets there are."""
    return frozenset(one.name for one in known_targets(config, handlers))


def store_options(config: Config) -> Options:
    """How the file is held, as configured."""
    return Options(
        name=config.server.name,
        queue=config.server.queue,
        checkpoint=config.store.checkpoint,
        durability=config.store.durability,
        wal_max=config.store.wal_max,
        least=lambda disk: min(config.store.min_free.bytes_of(disk), disk // 20),
    )


def unreached(config: Config, handlers: Handlers, routes: list[Route]) -> list[str]:
    """What nothing will ever come to, in sentences: it was surely meant otherwise. `routes` are all there are."""
    found = listeners(config, handlers, routes)
    return [*handlers.notes, *unheard(found, config.sources, internal(config, routes))]


def listeners(config: Config, handlers: Handlers, routes: list[Route]) -> list[Listener]:
    """The routes, each with the words for where it is written."""
    configured = routes[: len(config.routes)]
    found = [(f"routes[{number}].source", route) for number, route in enumerate(configured)]
    return [*found, *((f"handler {one.name} ({one.place})", one.route) for one in handlers.handlers)]
