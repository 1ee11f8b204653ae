"""Dead: what was given up, by what went wrong."""

from __future__ import annotations

import re
from typing import Any

import click

from oncebox.cli.look import collect
from oncebox.cli.options import Asked, asking

LONGEST = 200
_NUMBER = re.compile(r"\d+")

Json = dict[str, Any]


@click.command()
@click.option("--source", help="Exactly this source.")
@click.option("--type", "type_", help='A type, or a glob such as "invoice.*".')
@click.option("--since", help='From then on: "2h" back, or RFC 3339.')
@click.option("--target", help="Only deliveries to this target.")
@click.option("--error", help="List the events whose error has this in it.")
@click.option("--seqs", is_flag=True, help="Print their numbers only, as `oncebox rerun` takes them.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=10_000, show_default=True, help="Look at so many.")
@asking
def dead(
    asked: Asked,
    type_: str | None,
    target: str | None,
    error: str | None,
    limit: int,
    *,
    seqs: bool,
    **given: str | None,
) -> None:
    """Show what is dead, grouped by error; with --error, event by event.

    Once the fault is mended: `oncebox rerun --state dead`, or of one group only: `oncebox dead --target NAME
    --error TEXT --seqs | xargs -rn 10000 oncebox rerun --state dead --to NAME`.
    """
    from oncebox.cli.inbox import open_inbox
    from oncebox.cli.show import brief, print_json, print_table, stamp

    with open_inbox(asked) as inbox:
        events, page = collect(inbox.events, {**given, "type": type_, "state": "dead"}, limit)
    found = list_dead(events, target, error)
    if seqs:
        numbers = sorted({one["seq"] for one in found})
        print_json(numbers) if asked.as_json else click.echo("".join(f"{number}\n" for number in numbers), nl=False)
    elif error is not None:
        if asked.as_json:
            print_json({"dead": found, "next": page["next"]})
        else:
            names = ("seq", "source", "id", "type", "target", "attempts")
            rows = [(stamp(one["received_at"]), *(one[name] for name in names), brief(one["error"])) for one in found]
            print_table(("received (utc)", *names, "error"), rows)
    else:
        _print_groups(asked, found, page)
    if page["next"] is not None and not asked.as_json:
        click.echo(f"the newest {len(events)} were looked at; there are more: --limit", err=True)


def _print_groups(asked: Asked, found: list[Json], page: Json) -> None:
    from oncebox.cli.show import print_json, print_table, stamp

    groups = group_by_error(found)
    if asked.as_json:
        print_json({"groups": groups, "next": page["next"]})
        return
    rows = [
        (one["count"], one["target"], stamp(one["newest_at"]), ", ".join(map(str, one["seqs"][:3])), one["error"])
        for one in groups
    ]
    print_table(("count", "target", "newest (utc)", "such as", "error"), rows)


def list_dead(events: list[Json], target: str | None = None, error: str | None = None) -> list[Json]:
    """The dead deliveries of these events, one by one."""
    names = ("seq", "source", "id", "type", "received_at")
    return [
        {**{name: event[name] for name in names}, "target": one["target"], "attempts": one["attempts"], "error": told}
        for event in events
        for one in event["deliveries"]
        if one["state"] == "dead" and target in (None, one["target"])
        for told in [one["error"] or "no reason is known"]
        if error is None or error in told
    ]


def group_by_error(found: list[Json]) -> list[Json]:
    """The same fault of a target is one group, whatever numbers its text has; the largest first."""
    groups: dict[tuple[str, str], Json] = {}
    for one in found:
        line = one["error"].strip().splitlines()[0][:LONGEST] if one["error"].strip() else ""
        key = (one["target"], _NUMBER.sub("#", line))
        fresh = {"target": one["target"], "error": line, "count": 0, "newest_at": one["received_at"], "seqs": []}
        group = groups.setdefault(key, fresh)
        group["count"] += 1
        group["newest_at"] = max(group["newest_at"], one["received_at"])
        group["seqs"].append(one["seq"])
    return sorted(groups.values(), key=lambda group: -group["count"])
