"""Targets and sources: how each fares; pausing and resuming targets, settling what waits for them."""

from __future__ import annotations

from typing import Any

import click

from oncebox.cli.options import Asked, asking
from oncebox.cli.refused import Listing
from oncebox.cli.standing import reason


@click.group(cls=Listing)
def targets() -> None:
    """List targets: what waits, what is dead; pause and resume them, settle what waits."""


@targets.command("list")
@asking
def listed(asked: Asked) -> None:
    """List targets."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json, print_table, stamp

    found = open_desk(asked).targets()
    if asked.as_json:
        print_json(found)
        return
    counts = ("pending", "parked", "running", "dead")
    rows = [
        (
            one["name"],
            one["kind"],
            one["state"],
            *(one[name] for name in counts),
            stamp(one["oldest_due_at"]),
            reason(one),
        )
        for one in found["targets"]
    ]
    print_table(("target", "kind", "state", *counts, "oldest due (utc)", "why"), rows)


@targets.command()
@click.argument("name")
@click.option("--why", default="", help="A reason, for those who see it paused.")
@asking
def pause(asked: Asked, name: str, why: str) -> None:
    """Start nothing more for a target; events are still accepted and wait."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import clean, print_json

    found = open_desk(asked).pause(name, why)
    if asked.as_json:
        print_json(found)
    else:
        click.echo(f"{found['name']} is paused: {clean(found['paused'])}")


@targets.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every target that is paused.")
@asking
def resume(asked: Asked, names: tuple[str, ...], *, all_: bool) -> None:
    """Undo a pause, of some targets or of all."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json

    desk = open_desk(asked)
    found = [desk.resume(name) for name in _meant(desk, names, all_=all_)]
    if asked.as_json:
        print_json(found[0] if len(names) == 1 else {"targets": found})
        return
    for one in found:
        click.echo(f"{one['name']} {'goes on' if one['resumed'] else 'was not paused'}")
    if not found:
        click.echo("nothing is paused")


@targets.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "all_", is_flag=True, help="Every target that is paused.")
@click.option("--before", required=True, help='What was due before then: "2h" back, or RFC 3339.')
@click.option("--as", "as_", type=click.Choice(["done", "dead"]), required=True, help="What becomes of it.")
@click.option("--why", default="", help="A reason, for those who find it so.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@asking
def settle(asked: Asked, names: tuple[str, ...], *, all_: bool, dry_run: bool, **order: str) -> None:
    """Take deliveries that wait as made (or as dead), without making them.

    After a restore, what was due then may have been made since: pause the target, settle what was due before the
    restore as done, and resume it. What runs now is left alone. Who did it is recorded in the acts.
    """
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json

    desk = open_desk(asked)
    body = {"before": order["before"], "as": order["as_"], "why": order["why"], "dry_run": dry_run}
    found = [desk.settle(name, body) for name in _meant(desk, names, all_=all_)]
    if asked.as_json:
        print_json({"targets": found})
        return
    for one in found:
        more = "" if one["counted_all"] else "or more "
        what = f"{one['matched']} {more}would be settled" if dry_run else f"{one['settled']} settled"
        click.echo(f"{one['name']}: {what} as {one['as']}")
    if not found:
        click.echo("nothing is paused")


def _meant(desk: Any, names: tuple[str, ...], *, all_: bool) -> list[str]:
    """These targets, or all that are paused. Raises UsageError for none and for both."""
    if bool(names) == all_:
        raise click.UsageError("name targets, or say --all for every one that is paused")
    if names:
        return list(dict.fromkeys(names))
    return [one["name"] for one in desk.targets()["targets"] if one["paused"] is not None]


@click.command()
@asking
def sources(asked: Asked) -> None:
    """List sources: where each sends to, and what it has sent."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json, print_table, stamp

    found = open_desk(asked).sources()
    if asked.as_json:
        print_json(found)
        return
    rows = [
        (
            one["name"],
            one["kind"],
            one["url"],
            one["preset"],
            one["received"],
            one["replays"],
            ", ".join(f"{slug} {n}" for slug, n in one["refused"].items()),
            stamp(one["last_at"]),
        )
        for one in found["sources"]
    ]
    print_table(("source", "kind", "url", "preset", "received", "repeats", "refused", "last (utc)"), rows)
