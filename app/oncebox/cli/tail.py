"""Tail: events and their outcomes as they come, over the API, with a load that is bounded whatever happens there."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import click

from oncebox.cli.options import Asked, Number, asking

PAGE = 100
PAGES = 10
KNOWN = 5000
OPEN = 500
LOOKS = 5

Json = dict[str, Any]
Events = Callable[[dict[str, str | None]], Json]
Find = Callable[[int], Json | None]
Changed = Callable[[], list[Json]]


class Follower:
    """What has been shown. New events are asked for in pages that overlap, since numbers may arrive late; events that
    have not ended are looked at again, a few in each round, and so is what changed lately, however old it is."""

    def __init__(self, events: Events, event: Find, changed: Changed) -> None:
        self.look_at(events, event, changed)
        self._shown: dict[int, list[Json]] = {}
        self._open: dict[int, None] = {}

    def look_at(self, events: Events, event: Find, changed: Changed) -> None:
        """From now on at this server."""
        self._events = events
        self._event = event
        self._changed = changed

    def begin(self, given: dict[str, str | None], count: int) -> Iterator[Json]:
        """The last few; all older ones count as shown."""
        for event in self._changed():
            self._note(event)
        found = self._events({**given, "limit": str(PAGE)})["events"]
        for event in reversed(found):
            self._shown.pop(event["seq"], None)
            change = self._note(event)
            if change is not None and event in found[:count]:
                yield change

    def round(self, given: dict[str, str | None]) -> Iterator[Json]:
        """What is new or has changed since the last round, oldest first."""
        found, missed = self._newest(given)
        if missed:
            yield {"change": "missed", "event": None}
        again = list(self._open)[:LOOKS]
        for seq in again:
            del self._open[seq]
            event = self._event(seq) if all(one["seq"] != seq for one in found) else None
            if event is not None:
                found.append(event)
        numbers = {event["seq"] for event in found}
        old = [one for one in self._changed() if one["seq"] not in numbers and _fits(one, given)]
        for event in old:
            self._shown.setdefault(event["seq"], [])
        for event in sorted([*found, *old], key=lambda one: int(one["seq"])):
            change = self._note(event)
            if change is not None:
                yield change

    def _newest(self, given: dict[str, str | None]) -> tuple[list[Json], bool]:
        """The newest page, and older ones until one overlaps with what is known."""
        found: list[Json] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = self._events({**given, "limit": str(PAGE), "cursor": cursor})
            found += page["events"]
            cursor = page["next"]
            if cursor is None or any(one["seq"] in self._shown for one in page["events"]):
                return found, False
        return found, bool(self._shown)

    def _note(self, event: Json) -> Json | None:
        """Remember an event as it is now; what is to be shown of it."""
        seq, before = event["seq"], self._shown.pop(event["seq"], None)
        self._shown[seq] = now = event["deliveries"]
        if event["state"] in ("pending", "running"):
            self._open[seq] = None
        for memory, most in ((self._shown, KNOWN), (self._open, OPEN)):
            while len(memory) > most:
                del memory[next(iter(memory))]
        if before is None:
            return {"change": "received", "event": event}
        return {"change": "outcome", "event": event} if _outcomes(before) != _outcomes(now) else None


def _outcomes(deliveries: list[Json]) -> list[tuple[object, ...]]:
    """What is worth a line: not that an attempt has begun."""
    told = [(one["target"], one["run"], one["state"] in ("done", "dead"), one["error"]) for one in deliveries]
    return [one for one in told if one[2] or one[3]]


def _fits(event: Json, given: Mapping[str, str | None]) -> bool:
    """Whether it is of the source and type that are asked for."""
    source, kind = given.get("source"), given.get("type")
    return source in (None, event["source"]) and (kind is None or fnmatchcase(event["type"] or "", kind))


@click.command()
@click.option("--source", help="Exactly this source.")
@click.option("--type", "type_", help='A type, or a glob such as "invoice.*".')
@click.option("-n", "count", type=click.IntRange(0, PAGE), default=10, show_default=True, help="Begin with the last N.")
@click.option("--every", type=Number(0.2, 60), default=0.5, show_default=True, help="Seconds between looks.")
@asking
def tail(asked: Asked, source: str | None, type_: str | None, count: int, every: float) -> None:
    """Follow events and their outcomes as they come, until Ctrl-C, through restarts of the server.

    With --json, one line of JSON for each.
    """
    from oncebox.errors import NotReachable

    follower = Follower(*_reach(asked))
    given = {"source": source, "type": type_}
    away = False
    try:
        _print(follower.begin(given, count), as_json=asked.as_json)
        while True:
            _rest(every)
            try:
                if away:
                    follower.look_at(*_reach(asked))
                _print(follower.round(given), as_json=asked.as_json)
                away = False
            except NotReachable as error:
                if not away:
                    click.echo(f"oncebox: {error}; waiting for it to come back", err=True)
                away = True
    except KeyboardInterrupt:
        return


def _rest(seconds: float) -> None:
    """Wait. Raises BrokenPipeError when whoever read what is printed has gone: without news nothing would tell."""
    try:
        printed = sys.stdout.fileno()
    except (OSError, ValueError):
        time.sleep(seconds)
        return
    gone = select.poll()
    gone.register(printed, 0)
    if gone.poll(seconds * 1000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _reach(asked: Asked) -> tuple[Events, Find, Changed]:
    """How the server that is meant lists events, tells of one, and which changed lately."""
    from oncebox.cli.inbox import Server, client_for
    from oncebox.errors import NotReachable, OnceboxError

    client = client_for(asked)
    if client is None:
        raise NotReachable("nothing runs that could be followed; start `oncebox serve`, or name a server by --url")
    server = Server(client)

    def event(seq: int) -> Json | None:
        try:
            return server.event(seq)
        except NotReachable:
            raise
        except OnceboxError:
            return None

    def changed() -> list[Json]:
        try:
            events: list[Json] = client.glance("/api/stream")["events"]
        except NotReachable:
            raise
        except OnceboxError:
            return []  # very many listen
        return events

    return server.events, event, changed


def _print(changes: Iterator[Json], *, as_json: bool) -> None:
    for change in changes:
        lines = [json.dumps(change, ensure_ascii=False)] if as_json else told(change)
        for line in lines:
            click.echo(line)


def told(change: Json) -> list[str]:
    """A change in lines: the event, and each of its deliveries that has something to say."""
    from oncebox.cli.show import brief, clean, stamp

    event = change["event"]
    if event is None:
        return ["… more came than was looked at; see oncebox events"]
    name = f"{event['seq']:>8}  {event['source']} {clean(event['id'])}"
    lines = []
    if change["change"] == "received":
        kind = f" {clean(event['type'])}" if event["type"] is not None else ""
        nowhere = "  unrouted" if event["state"] == "unrouted" else ""
        lines.append(f"{stamp(event['received_at'])[11:]} {name}{kind}{nowhere}")
    for one in event["deliveries"]:
        why = f": {brief(one['error'])}" if one["error"] else ""
        if one["state"] in ("done", "dead") or why:
            at = stamp(one["processed_at"])[11:] or " " * 8
            lines.append(f"{at} {name}  {one['target']} {one['state']}{why}")
    return lines
