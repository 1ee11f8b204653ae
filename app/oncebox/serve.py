"""Serve: one process that answers HTTP until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from oncebox.accept.ingress import Front
from oncebox.clock import wall_clock
from oncebox.config import Config
from oncebox.errors import AddressInUse, OnceboxError
from oncebox.logs import set_up_logs
from oncebox.plugin import create_app
from oncebox.reload import reloading
from oncebox.server import Parts
from oncebox.store.lock import refuse_held
from oncebox.wire import Protocol

BACKLOG = 2048
LATE = 5.0
LAST_MOMENT = 0.5
INTERRUPTED = 130
# Threads take turns sooner than Python's 5 ms: the writer's many short steps would each wait so long for a busy loop.
SWITCH = 0.002
# Requests that wait for their commit are young objects that live: collecting every 700 of them finds nothing.
YOUNG = 20_000

log = logging.getLogger("oncebox.server")


class Server(uvicorn.Server):
    """uvicorn without its own signals: a stop is ours to do, and ends with exit code 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(load: Callable[[], Config], fd: int | None = None, wall: Callable[[], int] = wall_clock) -> int:
    """Run until SIGTERM or SIGINT; the exit code. SIGHUP loads the configuration again.

    `wall` gives the time that requests are judged by, in unix microseconds. Raises OnceboxError when it cannot start.
    """
    config = load()
    set_up_logs(config.server.log)
    for warning in config.warnings:
        log.warning("configuration %s", warning)
    with _listen_for(config, fd) as listener:
        uvloop.run(_serve(config, listener, load, wall))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        _leave(0)
    return 0


def _listen_for(config: Config, fd: int | None) -> socket.socket:
    try:
        return listen(config.server.host, config.server.port, fd)
    except AddressInUse:
        # Most often the other program is this one, started twice: then that is what to say.
        refuse_held(config.store.path)
        raise


def listen(host: str, port: int, fd: int | None) -> socket.socket:
    """The socket to accept on; taken before anything else, so that a port in use is the first thing said."""
    if fd is not None:
        return socket.socket(fileno=fd)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"{host}:{port} is in use by another program; stop it, or choose another port "
                "(server.port, ONCEBOX_PORT or --port)"
            ) from error
        raise OnceboxError(f"{host}:{port} cannot be listened on: {error.strerror or error} (server.host)") from error
    listener.setblocking(False)
    return listener


async def _serve(config: Config, listener: socket.socket, load: Callable[[], Config], wall: Callable[[], int]) -> None:
    sys.setswitchinterval(SWITCH)
    app, plugin = create_app(config, wall)
    async with plugin.serving(app) as parts, reloading(parts, load):
        server = Server(
            uvicorn.Config(
                Front(app, parts.inbox),
                http=Protocol,
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=max(1, int(config.server.grace / 2)),
            )
        )
        _obey_signals(server, config.server.grace, parts.stream.end)
        _announce(parts, listener)
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG)
        await server.serve(sockets=[listener])
        log.info("stopping")
    log.info("stopped")
    await _leave_deaf_tasks()


async def _leave_deaf_tasks() -> None:
    """A handler that ignores its cancellation would keep the loop from ending; everything else is closed by now."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest and (await asyncio.wait(rest, timeout=LAST_MOMENT))[1]:
        _leave(0)


def _obey_signals(server: Server, grace: float, stopping: Callable[[], None]) -> None:
    """The first signal stops, the second ends at once; what holds a stop up beyond its grace is ended, too."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if server.should_exit:
            _leave(INTERRUPTED)
        server.should_exit = True
        stopping()
        timer = threading.Timer(grace + LATE, _give_up)
        timer.daemon = True
        timer.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
        # A byte tells the loop. The handler that uvloop puts here tells it, too: a signal close behind another, twice.
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)


def _give_up() -> None:
    log.error("something did not end within the grace period; leaving it behind (its attempt will be found at start)")
    _leave(1)


def _leave(code: int) -> None:
    logging.shutdown()
    os._exit(code)


def _announce(parts: Parts, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}"
    parts.store.lock.announce(address, parts.store.boot)
    log.info("ready address=%s file=%s boot=%s", address, parts.store.path, parts.store.boot)
