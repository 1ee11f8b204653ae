"""Plugin: all of Oncebox inside a Litestar application, and beside everything that is the application's own."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

from litestar import HttpMethod, Litestar, Response, route
from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.plugins import InitPlugin
from litestar.routes import HTTPRoute
from litestar.types import Guard

from oncebox.clock import wall_clock
from oncebox.config import Config, load
from oncebox.errors import ConfigError, Locked, OnceboxError, StoreError
from oncebox.mount import Mount, beside
from oncebox.problem import CONTENT_TYPE, problem
from oncebox.server import Parts, create_surface, running
from oncebox.store import Transaction

T = TypeVar("T")
P = ParamSpec("P")

PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
WORKERS = (
    "Oncebox is one process: of several workers only one could hold the file, so start the application with one "
    "(uvicorn --workers 1, gunicorn --workers 1, WEB_CONCURRENCY=1)"
)
ASLEEP = problem(503, "overloaded", "the inbox is not running: the application's lifespan has not started it")
METHODS = [HttpMethod.GET, HttpMethod.POST, HttpMethod.PUT, HttpMethod.PATCH, HttpMethod.DELETE]
OWNER = "oncebox"

log = logging.getLogger("oncebox.server")


class OnceboxPlugin(InitPlugin):
    """Mounts the inbox below `path` and runs it for as long as the application's lifespan lasts.

    `config` is a configuration or the path of one. The application's middleware, exception handlers, hooks,
    dependencies and guards do not see our requests; `guards` stand before `/api` and `/schema`, behind the token.
    `pages` is for the pages for people, of which there are none yet. Raises ConfigError.
    """

    def __init__(
        self,
        config: str | Path | Config,
        path: str = "/inbox",
        pages: bool = True,
        guards: Sequence[Guard] | None = None,
        *,
        wall: Callable[[], int] = wall_clock,
    ) -> None:
        self.config = config if isinstance(config, Config) else load(Path(config), environ=os.environ, overrides={})
        self.path = path.rstrip("/")
        self.pages = pages
        self.guards = tuple(guards or ())
        self._wall = wall
        self._parts: Parts | None = None
        if not PATH.fullmatch(self.path):
            raise ConfigError(f'OnceboxPlugin: path "{path}" cannot be used; it is plain text such as "/inbox"')

    @property
    def parts(self) -> Parts:
        """What runs. Raises StoreError before the application has started and after it has stopped."""
        if self._parts is None:
            raise StoreError(
                f"{self.config.store.path}: the inbox is not running; it runs from the start of the application's "
                "lifespan to its end (in tests: `with TestClient(app)`)"
            )
        return self._parts

    async def transaction(
        self, fn: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `fn(db, …)` in the writer, in one transaction; what it emits commits with what it writes.

        It holds the writer up, so it computes and writes, and waits for nothing. An exception undoes it all. Who is
        cancelled while waiting does not know whether it was committed. Raises StoreError when the inbox does not run.
        """
        if inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"{fn.__qualname__} is async; transaction() takes a plain function, which waits for nothing"
            )
        parts = self.parts
        written = parts.store.write(lambda db: fn(db, *args, **kwargs), parts.clock())
        if asyncio.get_running_loop() is self._loop:
            return await written
        # Litestar's AsyncTestClient runs the application in a thread of its own.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(written, self._loop))

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the inbox to an application: its lifespan, inside those that are there, and the dependency `inbox`."""

        # Only what comes while the inbox does not run gets here; it also keeps the path from being taken twice.
        paths = [self.path or "/", f"{self.path}/{{rest:path}}"]

        @route(paths, http_method=METHODS, opt={OWNER: self}, include_in_schema=False, sync_to_thread=False)
        def asleep() -> Response[bytes]:
            return Response(ASLEEP, status_code=503, media_type=CONTENT_TYPE, headers={"retry-after": "5"})

        app_config.route_handlers.append(asleep)
        app_config.lifespan.append(self._lifespan)
        app_config.dependencies.setdefault("inbox", Provide(self._provide, sync_to_thread=False))
        return app_config

    def _provide(self) -> OnceboxPlugin:
        return self

    @asynccontextmanager
    async def _lifespan(self, app: Litestar) -> AsyncIterator[None]:
        """As a server starts and ends it. What it raises comes out wrapped in groups, so the log says it in a line."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self.serving(app))
            except OnceboxError as error:
                told = Locked(f"{error}. {WORKERS}") if isinstance(error, Locked) else error
                log.error("the inbox at %s does not start: %s", self.path or "/", told)
                raise told from error.__cause__
            for warning in _warnings(self.config, self.path):
                log.warning("configuration %s", warning)
            log.info("ready path=%s file=%s boot=%s", self.path or "/", self.parts.store.path, self.parts.store.boot)
            yield

    @asynccontextmanager
    async def serving(self, app: Litestar) -> AsyncIterator[Parts]:
        """Open the file, process what is in it and answer at `path` for as long as the block lasts.

        Raises OnceboxError.
        """
        _refuse_overlap(app, self.path, self)
        async with running(self.config, self._wall) as parts:
            surface = create_surface(parts, path=self.path, guards=self.guards)
            with beside(app, Mount(self.path, surface), lambda address: self._announce(parts, address)):
                self._parts, self._loop = parts, asyncio.get_running_loop()
                try:
                    yield parts
                finally:
                    self._parts = None

    def _announce(self, parts: Parts, address: str) -> None:
        parts.store.lock.announce(f"{address}{self.path}", parts.store.boot)


def create_app(config: Config, wall: Callable[[], int] = wall_clock) -> tuple[Litestar, OnceboxPlugin]:
    """The appliance: an application that is nothing but the inbox."""
    plugin = OnceboxPlugin(config, path="/", wall=wall)
    return Litestar(plugins=[plugin], openapi_config=None, logging_config=None), plugin


def _refuse_overlap(app: Litestar, path: str, plugin: OnceboxPlugin) -> None:
    """Raises ConfigError where the application has routes that the inbox would hide."""
    others = [
        one.path
        for one in app.routes
        if f"{one.path}/".startswith(f"{path}/")
        and not (isinstance(one, HTTPRoute) and any(handler.opt.get(OWNER) is plugin for handler in one.route_handlers))
    ]
    if others:
        raise ConfigError(
            f'OnceboxPlugin: path "{path or "/"}" would hide routes of the application ({", ".join(others[:3])}); '
            'give the inbox a path of its own, such as "/inbox"'
        )


def _warnings(config: Config, path: str) -> list[str]:
    """What may be wrong with the configuration inside this application."""
    public = config.server.public_url
    if public is None or urlsplit(public).path.endswith(path):
        return list(config.warnings)
    elsewhere = (
        f"server.public_url: {public} does not end in {path}, where the inbox is, so the URLs of sources are wrong and "
        f'senders that sign theirs are refused; unless a proxy takes {path} away, say "{public}{path}"'
    )
    return [*config.warnings, elsewhere]
