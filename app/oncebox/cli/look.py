"""Look: what came, what became of it, and what was turned away."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from oncebox.cli.options import Asked, asking

PAGE = 500
PATIENCE = 10.0
_TRIED = ("run", "number", "started_at", "outcome", "duration_ms", "detail")


@click.command()
@click.option("--source", help="Exactly this source.")
@click.option("--type", "type_", help='A type, or a glob such as "invoice.*".')
@click.option("--state", help="pending, parked, running, done, dead or unrouted.")
@click.option("--since", help='From then on: "2h" back, or RFC 3339.')
@click.option("--until", help='Up to then: "2h" back, or RFC 3339.')
@click.option("--search", "q", help="A part of the id or type.")
@click.option("--body", help="A part of the body.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True)
@click.option("--cursor", help="Where a list before this one ended.")
@asking
def events(asked: Asked, type_: str | None, limit: int, **filters: str | None) -> None:
    """List events, newest first."""
    from oncebox.cli.inbox import open_inbox
    from oncebox.cli.show import print_json

    given = {**filters, "type": type_}
    with open_inbox(asked) as inbox:
        found, page = collect(inbox.events, given, limit)
        hint = "" if found else no_source(inbox, given["source"])
    if hint:
        click.echo(f"oncebox: {hint}", err=True)
    if asked.as_json:
        print_json({**page, "events": found})
        return
    _print_events(found)
    if page["next"] is not None:
        looked = f"looked at all from seq {page['searched_to']} on; " if "searched_to" in page else ""
        click.echo(f"{looked}there may be more: --cursor {page['next']}", err=True)


def collect(ask: Any, given: dict[str, str | None], limit: int) -> tuple[list[Any], dict[str, Any]]:
    """Pages until enough is found: one may come short when the server has looked for long enough."""
    found: list[Any] = []
    page: dict[str, Any] = {"next": given.get("cursor")}
    end = time.monotonic() + PATIENCE
    while True:
        room = str(min(PAGE, limit - len(found)))
        page = ask({**given, "cursor": page["next"], "limit": room})
        found += page["events"]
        if page["next"] is None or len(found) >= limit or time.monotonic() > end:
            return found, page


def no_source(inbox: Any, source: str | None) -> str:
    """What to say of a source that nobody knows; "" where it is known or none was named."""
    from oncebox.cli.show import clean
    from oncebox.wording import nearest

    known = inbox.stats()["sources"] if source is not None else {}
    if source is None or source in known:
        return ""
    there = nearest(source, known) or f"; there are: {', '.join(known) or 'none'}"
    return f'there is no source "{clean(source)}"{there}'


def _print_events(found: list[Any]) -> None:
    from oncebox.cli.show import print_table, stamp

    rows = [
        (
            one["seq"],
            stamp(one["received_at"]),
            one["source"],
            one["id"],
            one["type"],
            one["state"],
            one["replays"] or None,
        )
        for one in found
    ]
    print_table(("seq", "received (utc)", "source", "id", "type", "state", "repeats"), rows)


@click.command()
@click.argument("seq", type=click.IntRange(1))
@click.option("--body", is_flag=True, help="Write the exact bytes of the body, and nothing else.")
@asking
def show(asked: Asked, seq: int, *, body: bool) -> None:
    """Show one event by its number."""
    from oncebox.cli.inbox import open_inbox
    from oncebox.cli.show import print_json

    with open_inbox(asked) as inbox:
        if body:
            sys.stdout.buffer.write(inbox.body(seq))
            return
        event = inbox.event(seq)
    if asked.as_json:
        print_json(event)
    else:
        _print_event(event)


def _print_event(event: dict[str, Any]) -> None:
    from oncebox.cli.show import clean, print_facts, print_table

    names = ("seq", "source", "id", "type", "received_at", "state", "processed_at", "verified", "parent", "size")
    more = ("content_type", "body", "replays", "last_replay_at", "conflicts")
    print_facts([(name, event[name]) for name in (*names, *more)])
    for name, value in event["headers"]:
        click.echo(f"  {clean(name)}: {clean(value)}")
    rows = [
        (one["target"], one["state"], *(_cell(name, tried[name]) for name in _TRIED))
        for one in event["deliveries"]
        for tried in one["history"] or [_untried(one)]
    ]
    if rows:
        click.echo()
        print_table(("target", "state", "run", "attempt", "started (utc)", "outcome", "ms", "detail"), rows)
    for one in event["deliveries"]:
        if one["error"] and "\n" in one["error"].strip():
            click.echo(f"\n{one['target']}:")
            click.echo("\n".join(f"  {clean(line)}" for line in one["error"].splitlines()))


def _cell(name: str, value: Any) -> Any:
    from oncebox.cli.show import brief, stamp

    if name == "started_at":
        return stamp(value)
    return brief(value) if name == "detail" and value else value


def _untried(delivery: dict[str, Any]) -> dict[str, Any]:
    empty = dict.fromkeys(("number", "started_at", "outcome", "duration_ms"))
    return {**empty, "run": delivery["run"], "detail": delivery["error"]}


@click.command()
@click.argument("source")
@click.argument("id")
@asking
def lookup(asked: Asked, source: str, id: str) -> None:
    """Did this go through? The story of one event by its sender's id."""
    from oncebox.cli.inbox import open_inbox
    from oncebox.cli.show import print_json
    from oncebox.errors import OnceboxError

    with open_inbox(asked) as inbox:
        try:
            event = inbox.lookup(source, id)
        except OnceboxError as error:
            hint = no_source(inbox, source)
            if not hint:
                raise
            raise OnceboxError(f"{error}; {hint}") from None
        if asked.as_json:
            print_json(event)
            return
        targets, turned_away = inbox.targets(), inbox.refused({"source": source, "limit": str(PAGE)})["refused"]
    from oncebox.cli.story import tell

    for sentence in tell(event, targets, turned_away):
        click.echo(sentence)


@click.command()
@asking
def stats(asked: Asked) -> None:
    """Totals by source and state."""
    from oncebox.cli.inbox import open_inbox
    from oncebox.cli.show import print_facts, print_json, print_table, size, stamp, when

    with open_inbox(asked) as inbox:
        found = inbox.stats()
    if asked.as_json:
        print_json(found)
        return
    rows = [
        (name, one["received"], one["replays"], _counts(one["refused"]), stamp(one["last_at"]))
        for name, one in found["sources"].items()
    ]
    if rows:
        print_table(("source", "received", "repeats", "refused", "last (utc)"), rows)
    file = found["file"]
    print_facts(
        [
            ("events", found["events"]),
            ("deliveries", _counts(found["by_state"]) or "none"),
            ("oldest due", when(found["oldest_due_at"]) or None),
            ("operations", _operations(found["operations"])),
            ("file", f"{size(file['db'])}, of that free {size(file['free'])}; write-ahead log {size(file['wal'])}"),
            ("disk free", size(file["disk_free"])),
        ]
    )


def _operations(counts: dict[str, int]) -> str | None:
    """What has not ended, and what a person has to decide."""
    unknown = f"{counts['unknown']} unknown: oncebox operations --state unknown" if counts["unknown"] else ""
    running = f"{counts['running']} running" if counts["running"] else ""
    return ", ".join(filter(None, (running, unknown))) or None


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items() if n)


@click.command()
@click.argument("n", type=click.IntRange(1), required=False)
@click.option("--source", help="Exactly this source.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@asking
def refused(asked: Asked, n: int | None, source: str | None, limit: int) -> None:
    """List requests that were turned away and why; with a number, one of them whole."""
    from oncebox.cli.inbox import open_inbox
    from oncebox.cli.show import print_json, print_table, stamp

    with open_inbox(asked) as inbox:
        if n is not None:
            print_json(inbox.refused_request(n))
            return
        found = inbox.refused({"source": source, "limit": str(limit)})
        hint = "" if found["refused"] else no_source(inbox, source)
    if hint:
        click.echo(f"oncebox: {hint}", err=True)
    if asked.as_json:
        print_json(found)
        return
    rows = [
        (one["n"], stamp(one["at"]), one["source"], one["problem"], stamp(one["accepted_at"]), one["detail"])
        for one in found["refused"]
    ]
    print_table(("n", "at (utc)", "source", "problem", "accepted (utc)", "why"), rows)
