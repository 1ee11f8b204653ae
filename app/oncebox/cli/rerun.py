"""Rerun: history processed again, and how far that has got."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from oncebox.cli.options import Asked, Number, asking, choosing
from oncebox.cli.refused import Listing

LOOK_EVERY = 0.3

Json = dict[str, Any]


@click.command()
@click.argument("seqs", metavar="[SEQ]...", type=click.IntRange(1), nargs=-1)
@click.option("--to", multiple=True, metavar="TARGET", help="Only to this target, also where it is a new one.")
@choosing
@click.option("--all", "all_", is_flag=True, help="Really all history, without any filter.")
@click.option("--rate", type=Number(0, 100_000, min_open=True), help="At most so many deliveries a second.")
@click.option("--again", is_flag=True, help="Under new names: see above.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--wait/--no-wait", default=None, help="Show the progress until it has ended; the default on a terminal.")
@asking
def rerun(asked: Asked, seqs: tuple[int, ...], *, dry_run: bool, wait: bool | None, **given: Any) -> None:
    """Process events again: by their numbers, or all that fit a filter.

    What is done or dead starts over, as one run more; what is still being processed is left alone, and so is an event
    whose body is gone. Events that went nowhere (--state unrouted) go where today's routes send them.

    What handlers emit keeps its ids, so that nothing downstream happens twice, and targets are told the same
    idempotency key. With --again both get new ones for this run: whoever listens takes them for new events.
    """
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json

    order = _order(seqs, given)
    desk = open_desk(asked)
    if len(seqs) == 1 and not dry_run and given["rate"] is None and given["state"] is None:
        found = desk.rerun_event(seqs[0], {"to": list(given["to"]), "again": given["again"]})
    else:
        found = desk.rerun_many({**order, "dry_run": dry_run})
    follows = not dry_run and desk.live and (sys.stdout.isatty() and not asked.as_json if wait is None else wait)
    if follows:
        found = _follow(asked, desk, found["id"])
    if asked.as_json:
        print_json(found)
    elif dry_run:
        click.echo(f"{found['matched']} deliveries would be processed again")
    else:
        click.echo(_told(found, live=desk.live))
    if follows:
        sys.exit(1 if found["dead"] else 0)


def _order(seqs: tuple[int, ...], given: Json) -> Json:
    """The order as the API takes it; what was not given is left out."""
    names = {"source": "source", "type_": "type", "state": "state", "since": "since", "until": "until"}
    order: Json = {name: given[option] for option, name in names.items() if given[option] is not None}
    if seqs:
        order["seqs"] = list(seqs)
    if given["where"]:
        order["where"] = dict(condition(text) for text in given["where"])
    if given["rate"] is not None:
        order["rate"] = given["rate"]
    if given["all_"]:
        order["all"] = True
    if not order.keys() - {"rate"}:
        raise click.UsageError("give the numbers of events, a filter such as --source NAME, or --all for all history")
    return {**order, "to": list(given["to"]), "again": given["again"]}


def condition(text: str) -> tuple[str, object]:
    """`/livemode=true` as a pointer and a value; a value that is no JSON is a text. Raises UsageError."""
    pointer, sign, value = text.partition("=")
    if not sign:
        raise click.UsageError(f'--where {text}: is written POINTER=JSON, such as "/livemode=true"')
    try:
        return pointer, json.loads(value)
    except ValueError:
        return pointer, value


def _told(found: Json, *, live: bool) -> str:
    if found["state"] == "running":
        when = f"see: oncebox reruns show {found['id']}" if live else "it begins when `oncebox serve` starts"
        return f"rerun {found['id']}: {found['matched']} deliveries to process again; {when}"
    more = f"; {found['skipped']} skipped" if found.get("skipped") else ""
    return (
        f"rerun {found['id']} {found['state']}: {found['done']} done, {found['dead']} dead of {found['matched']}{more}"
    )


def _follow(asked: Asked, desk: Any, id: int) -> Json:
    """Look until it has ended; leaving by Ctrl-C leaves it running."""
    goes_on = f"rerun {id} goes on; to end it: oncebox reruns cancel {id}"
    if asked.as_json or not sys.stdout.isatty():
        try:
            return _until_ended(asked, desk, id, lambda _found: None)
        except KeyboardInterrupt:
            click.echo(goes_on, err=True)
            raise
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("rerun {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("[red]{task.fields[dead]} dead"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(str(id), total=None, dead=0)

        def show(found: Json) -> None:
            ended = found["done"] + found["dead"]
            progress.update(bar, total=max(found["matched"], ended), completed=ended, dead=found["dead"])

        try:
            return _until_ended(asked, desk, id, show)
        except KeyboardInterrupt:
            progress.stop()
            click.echo(goes_on)
            sys.exit(0)


def _until_ended(asked: Asked, desk: Any, id: int, show: Any) -> Json:
    """Look again and again, through restarts of the server, as the rerun itself goes on through them."""
    from oncebox.cli.desk import ServerDesk
    from oncebox.cli.inbox import client_for
    from oncebox.errors import NotReachable

    away = False
    while True:
        try:
            client = client_for(asked) if away else None
            desk = desk if client is None else ServerDesk(client)
            found: Json = desk.rerun(id)
        except NotReachable as error:
            if not away:
                click.echo(f"oncebox: {error}; rerun {id} goes on when it is back", err=True)
            away = True
        else:
            away = False
            show(found)
            if found["state"] != "running":
                return found
        time.sleep(LOOK_EVERY)


@click.group(cls=Listing)
def reruns() -> None:
    """List reruns, watch one, or cancel it."""


@reruns.command("list")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@asking
def listed(asked: Asked, limit: int) -> None:
    """List reruns, newest first."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json, print_table, stamp

    found = open_desk(asked).reruns({"limit": str(limit)})
    if asked.as_json:
        print_json(found)
        return
    counts = ("state", "matched", "queued", "done", "dead", "skipped")
    rows = [
        (one["id"], stamp(one["created_at"]), one["who"], *(one[name] for name in counts), _filter(one))
        for one in found["reruns"]
    ]
    print_table(("id", "at (utc)", "who", *counts, "what"), rows)


@reruns.command()
@click.argument("number", metavar="ID", type=click.IntRange(1))
@click.option("--wait/--no-wait", default=None, help="Show the progress until it has ended; the default on a terminal.")
@asking
def show(asked: Asked, number: int, *, wait: bool | None) -> None:
    """Show one rerun; on a terminal, follow it until it has ended."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_facts, print_json

    desk = open_desk(asked)
    found = desk.rerun(number)
    if (
        found["state"] == "running"
        and desk.live
        and (sys.stdout.isatty() and not asked.as_json if wait is None else wait)
    ):
        found = _follow(asked, desk, number)
    if asked.as_json:
        print_json(found)
        return
    names = ("id", "state", "matched", "queued", "done", "dead", "skipped", "rate", "who", "created_at", "finished_at")
    print_facts([*((name, found[name]) for name in names), ("what", _filter(found))])


@reruns.command()
@click.argument("number", metavar="ID", type=click.IntRange(1))
@asking
def cancel(asked: Asked, number: int) -> None:
    """Queue nothing more of a rerun; what is queued is still processed."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json

    found = open_desk(asked).cancel(number)
    if asked.as_json:
        print_json(found)
    else:
        left = found["queued"] - found["done"] - found["dead"]
        more = f"; {left} that were queued are still processed" if left and found["state"] == "cancelled" else ""
        click.echo(f"rerun {found['id']} is {found['state']}{more}")


def _filter(one: Json) -> str:
    """In short: what was asked for."""
    shown = dict(one["filter"])
    if "seqs" in shown:
        seqs = shown["seqs"]
        shown["seqs"] = ",".join(map(str, seqs[:5])) + (",…" if len(seqs) > 5 else "")
    if one["to"]:
        shown["to"] = ",".join(one["to"])
    return " ".join(f"{name}={value}" for name, value in shown.items()) + (" again" if one["again"] else "")
