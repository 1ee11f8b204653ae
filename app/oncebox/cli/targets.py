"""Targets and sources: how each fares; pausing and resuming a target."""

from __future__ import annotations

from typing import Any

import click

from oncebox.cli.options import Asked, asking
from oncebox.cli.refused import Listing


@click.group(cls=Listing)
def targets() -> None:
    """List targets: what waits, what is dead; pause and resume them."""


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
            _why(one),
        )
        for one in found["targets"]
    ]
    print_table(("target", "kind", "state", *counts, "oldest due (utc)", "why"), rows)


def _why(one: dict[str, Any]) -> str | None:
    if one["state"] == "blocked":
        return "nobody is this target (any more); its deliveries wait for it to come back"
    reason: str | None = one["paused"]
    return reason


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
@click.argument("name")
@asking
def resume(asked: Asked, name: str) -> None:
    """Undo a pause."""
    from oncebox.cli.desk import open_desk
    from oncebox.cli.show import print_json

    found = open_desk(asked).resume(name)
    if asked.as_json:
        print_json(found)
    else:
        click.echo(f"{found['name']} {'goes on' if found['resumed'] else 'was not paused'}")


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
