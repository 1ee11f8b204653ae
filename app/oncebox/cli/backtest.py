"""Backtest: what today's handlers would make of the past, tried out in a file that is thrown away."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import click

from oncebox.cli.options import choosing, config_option, json_option
from oncebox.cli.rerun import condition

PREFIX = "oncebox-backtest-"
SCRATCH = "scratch.db"
# A folder is younger than this until its file is surely held, in seconds.
LEFT_OVER = 60.0

Json = dict[str, Any]


@click.command()
@click.option("--to", multiple=True, metavar="HANDLER", help="Only this handler.")
@choosing
@click.option("--tables", default="", metavar="A,B", help="Copy these tables of yours into the scratch file first.")
@config_option
@json_option
def backtest(config: Path | None, tables: str, *, as_json: bool, **given: Any) -> None:
    """Run past events through today's transactional handlers, in a scratch file: nothing of it leaves that file.

    The scratch file is new and empty but for what @setup makes (and --tables); it is deleted afterwards. The inbox's
    own file is only read, with or without a running server. Events come in the order in which they arrived and go
    where today's routes send them; what handlers emit is worked through at once, by the handlers that listen to it.
    Blocking and async handlers, URLs and commands are not run. A handler that raises Retry is called once more, after
    all others. The exit code is 0 when nothing failed, 1 when something did.
    """
    from oncebox.cli.show import print_json

    began = time.monotonic()
    named = list(dict.fromkeys(name for name in tables.split(",") if name))
    # What handlers print is no part of the answer.
    with interrupted_by(signal.SIGTERM, signal.SIGHUP), redirect_stdout(sys.stderr if as_json else sys.stdout):
        found, left_out = _run(config, named, given, shown=not as_json)
    seconds = time.monotonic() - began
    if as_json:
        print_json(_json(found, left_out, seconds))
    else:
        _print(found, left_out, seconds)
    sys.exit(1 if found.failed else 0)


@contextmanager
def interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """Whatever ends the run, the scratch file with its copies of events goes with it."""

    def as_by_ctrl_c(number: int, frame: FrameType | None) -> None:
        # While the event loop runs, its own answer to Ctrl-C is in place, which unwinds without a traceback.
        usual = signal.getsignal(signal.SIGINT)
        (usual if callable(usual) else signal.default_int_handler)(number, frame)

    before = [signal.signal(number, as_by_ctrl_c) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _run(path: Path | None, tables: list[str], given: Json, *, shown: bool) -> tuple[Any, list[str]]:
    """What it came to, and the names of what was not run."""
    from oncebox.cli.inbox import load_config
    from oncebox.drain.backtest import backtest as run
    from oncebox.drain.handler import TRANSACTIONAL
    from oncebox.store.choice import bounds
    from oncebox.store.history import facts
    from oncebox.store.offline import open_beside
    from oncebox.store.scratch import open_scratch
    from oncebox.wiring import all_routes, internal, load, route_by

    config = load_config(path)
    handlers = load(config)
    routes = all_routes(config, handlers)
    able = [one.name for one in handlers.handlers if one.kind == TRANSACTIONAL]
    names = _names(given["to"], able, [*handlers.names, *config.targets])
    choice = _choice(given, names)

    async def held(read: Callable[[Callable[[Any], Any]], Any], folder: Path) -> Any:
        instance, next_seq = read(facts)
        between = read(lambda db: bounds(db, choice))
        async with open_scratch(
            folder / SCRATCH,
            router=route_by(routes),
            internal=internal(config, routes),
            names=names,
            instance=config.server.name or instance,
            upto=next_seq,
        ) as scratch:
            with _progress(between, shown=shown) as told:
                return await run(scratch, handlers, read, choice, between, tables=tables, names=names, told=told)

    _remove_left_over()
    with open_beside(config.store.path) as read, tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        found = anyio.run(held, read, Path(folder))
    return found, sorted({*handlers.names, *config.targets} - set(able))


def _remove_left_over() -> None:
    """What was killed has left its copies of events behind. One that runs holds its file."""
    from oncebox.store.lock import read_lock

    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            at = folder.stat()
            if at.st_uid != os.getuid() or time.time() - at.st_mtime < LEFT_OVER:
                continue
            lock = read_lock(folder / SCRATCH)
            if lock is not None and not lock.held:
                shutil.rmtree(folder)


def _names(wanted: tuple[str, ...], able: list[str], every: list[str]) -> list[str]:
    """The handlers to run. Raises UsageError for one that is not there or that acts on the world outside."""
    for name in wanted:
        if name not in able:
            why = "is not transactional, so its effects would leave the file" if name in every else "is not there"
            raise click.UsageError(f"--to {name}: that handler {why}; there are: {', '.join(able) or 'none'}")
    if not able:
        raise click.UsageError("there is no transactional handler (`def f(event, db)`) to try out; see handlers = […]")
    return list(dict.fromkeys(wanted)) or able


def _choice(given: Json, names: list[str]) -> Any:
    from oncebox.clock import wall_clock
    from oncebox.errors import Rejected
    from oncebox.operate.rerunning import Order, read_choice

    order = Order(
        source=given["source"],
        type=given["type_"],
        state=given["state"],
        since=given["since"],
        until=given["until"],
        where=dict(condition(text) for text in given["where"]),
        to=list(given["to"]),
        all=True,
    )
    try:
        return read_choice(order, names, wall_clock())
    except Rejected as error:
        raise click.UsageError(f"--{error.detail}") from error


@contextmanager
def _progress(between: tuple[int, int], *, shown: bool) -> Iterator[Callable[[Any], None]]:
    """A bar on a terminal; by arrival numbers, since nothing has been counted."""
    if not (shown and sys.stdout.isatty()):
        yield lambda _tally: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("backtest"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[events]} events"),
        TextColumn("[red]{task.fields[failed]} failed"),
        TimeRemainingColumn(),
    )
    after, upto = between
    with Progress(*columns) as progress:
        bar = progress.add_task("backtest", total=max(1, upto - after), events=0, failed=0)
        yield lambda tally: progress.update(
            bar, completed=tally.position - after, events=tally.events, failed=tally.failed
        )


def _groups(found: Any) -> list[Any]:
    return sorted(found.groups.values(), key=lambda group: -group.count)


def _json(found: Any, left_out: list[str], seconds: float) -> Json:
    return {
        "events": found.events,
        "done": found.done,
        "failed": found.failed,
        "skipped": found.skipped,
        "not_run": left_out,
        "seconds": round(seconds, 3),
        "groups": [
            {"target": one.target, "error": one.error, "count": one.count, "seqs": one.seqs} for one in _groups(found)
        ],
    }


def _print(found: Any, left_out: list[str], seconds: float) -> None:
    from oncebox.cli.show import print_table

    if found.groups:
        rows = [(one.count, one.target, ", ".join(map(str, one.seqs)), one.error) for one in _groups(found)]
        print_table(("count", "handler", "such as", "error"), rows)
    more = f"; {found.skipped} were skipped, their bodies are gone" if found.skipped else ""
    rate = f" ({found.events / seconds:,.0f} a second)" if found.events else ""
    click.echo(f"{found.events} events in {seconds:.1f} s{rate}: {found.done} done, {found.failed} failed{more}")
    if left_out:
        click.echo(f"not run, since their effects would leave the file: {', '.join(left_out)}")
