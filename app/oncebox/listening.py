"""Listening: routes and handlers to which nothing will come. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from oncebox.route import GLOB, Route
from oncebox.wording import closest, nearest

Listener = tuple[str, Route]


def unheard(listeners: Iterable[Listener], sources: Collection[str], emitted: Collection[str]) -> Iterator[str]:
    """A sentence for each listener (who it is, its route) that no source is for; `sources` are the configured ones and
    `emitted` the ones that handlers may emit into.

    A plain name that nobody configured is a source for emits, so it is doubted only where it is nearly another's.
    """
    for who, route in listeners:
        if GLOB & set(route.source):
            if not any(fnmatchcase(name, route.source) for name in {*sources, *emitted}):
                yield f'{who}: no source fits "{route.source}"; there are: {", ".join(sources) or "none"}'
        elif route.source not in sources and closest(route.source, sources):
            yield (
                f'{who}: no source is called "{route.source}"{nearest(route.source, sources)} If not, only '
                f'db.emit("{route.source}", …) reaches it; say so by [sources.{route.source}] internal = true'
            )


def implied(listeners: Iterable[Listener], sources: Collection[str]) -> Iterator[str]:
    """A sentence for each listener whose source nobody configured, and which is no misspelling either."""
    for who, route in listeners:
        plain = not GLOB & set(route.source)
        if plain and route.source not in sources and not closest(route.source, sources):
            yield (
                f'{who}: no source is called "{route.source}", so it is an internal one and only '
                f'db.emit("{route.source}", …) reaches it; say so by [sources.{route.source}] internal = true'
            )
