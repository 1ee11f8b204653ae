"""Targets, sources and acts: where events go and come from, how each fares, and what people did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from oncebox.condition import Condition
from oncebox.config import Config
from oncebox.model import moment
from oncebox.operate import filters
from oncebox.operate.look import Query, not_found
from oncebox.operate.shape import Json
from oncebox.store.acts import act, list_acts
from oncebox.store.figures import SourceFigures, figures
from oncebox.store.queries import generation
from oncebox.store.sqlite import SQLiteStore
from oncebox.store.targets import TargetFigures, pauses, target_figures

LARGEST = (1 << 63) - 1
MOST_WORDS = 200
WELL = Condition()


class Known(msgspec.Struct, frozen=True):
    """A target of the configuration: its kind is handler, url or command."""

    name: str
    kind: str


class Why(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a pause; it may be empty."""

    why: str = ""


def read_why(body: bytes) -> str:
    """Why somebody pauses a target. Raises Rejected 400."""
    try:
        why = msgspec.json.decode(body.strip() or b"{}", type=Why).why
    except msgspec.DecodeError as error:
        raise filters.bad_request(f'the body is empty, or such as {{"why": "deploying"}}: {error}') from None
    if len(why) > MOST_WORDS:
        raise filters.bad_request(f"why: has {len(why)} characters; {MOST_WORDS} are enough")
    return why


def targets(known: Sequence[Known], conditions: Mapping[str, Condition]) -> Query:
    """Every target of the configuration, and those that only old deliveries name.

    `conditions` says how those fare that are not simply ready.
    """

    def query(db: Any) -> Json:
        paused = pauses(db)
        names = {one.name: one.kind for one in known}
        found = {one.name: one for one in target_figures(db, names)}
        every = sorted({*names, *found, *paused})
        return {"targets": [_target(name, names, found.get(name), paused, conditions) for name in every]}

    return query


def _target(
    name: str,
    kinds: Mapping[str, str],
    counted: TargetFigures | None,
    paused: Mapping[str, tuple[str, int]],
    conditions: Mapping[str, Condition],
) -> Json:
    counts = counted or TargetFigures(name)
    why, since = paused.get(name, (None, None))
    condition = conditions.get(name, WELL)
    state = "paused" if why is not None else condition.state if name in kinds else "blocked"
    return {
        "name": name,
        "kind": kinds.get(name),
        "state": state,
        "paused": why,
        "paused_at": _moment(since),
        **_condition(condition),
        "pending": counts.pending,
        "parked": counts.parked,
        "running": counts.running,
        "dead": counts.dead,
        "counted_all": counts.counted_all,
        "oldest_due_at": _moment(counts.oldest_due),
    }


def _condition(one: Condition) -> Json:
    """What this process knows; a paused target may be down, too."""
    down = {"since": _moment(one.down_since), "next_probe_at": _moment(one.next_probe_at)}
    failure = {"at": _moment(one.failed_at), "outcome": one.outcome, "error": one.error}
    return {
        "stuck": one.stuck,
        "down": None if one.down_since is None else down,
        "last_failure": None if one.failed_at is None else failure,
    }


def _moment(at: int | None) -> str | None:
    return None if at is None else moment(at)


async def pause(store: SQLiteStore, known: Sequence[Known], name: str, why: str, *, who: str, now: int) -> Json:
    """Start nothing more for a target. Raises Rejected 404 for one that nobody is."""
    check_known(name, known, ())
    reason = why or f"paused by {who}"

    def work(db: Any, _books: Any) -> None:
        store.pauses.add(db, name, reason, now)
        act(db, who, "target paused", f"{name}: {reason}", now)

    await store.change(work)
    return {"name": name, "paused": (await store.paused())[name]}


async def resume(store: SQLiteStore, known: Sequence[Known], name: str, *, who: str, now: int) -> Json:
    """Undo a pause. Raises Rejected 404 for a target that nobody is and that is not paused."""
    check_known(name, known, await store.paused())

    def work(db: Any, _books: Any) -> bool:
        resumed = store.pauses.remove(db, name)
        if resumed:
            act(db, who, "target resumed", name, now)
        return resumed

    resumed = await store.change(work)
    store.writer.tell({name})
    return {"name": name, "paused": None, "resumed": resumed}


def check_known(name: str, known: Sequence[Known], also: Sequence[str] | Mapping[str, str]) -> None:
    """Raises Rejected 404 for a target that nobody is and that is not one of `also`."""
    names = [one.name for one in known]
    if name not in names and name not in also:
        close = get_close_matches(name, names, 1)
        hint = f'did you mean "{close[0]}"?' if close else f"there are: {', '.join(names) or 'none'}"
        raise not_found(f'there is no target "{name[:80]}"; {hint}')


def sources(config: Config, internal: Sequence[str], now: int) -> Query:
    """Every source, configured or seen, with what it has sent."""

    def query(db: Any) -> Json:
        found = figures(db, now, 1, [*config.sources, *internal]).sources
        return {"sources": [_source(config, name, counts, internal) for name, counts in found.items()]}

    return query


def _source(config: Config, name: str, counts: SourceFigures, internal: Sequence[str]) -> Json:
    one = config.sources.get(name)
    inside = name in internal or (one is not None and one.internal)
    public = config.server.public_url
    return {
        "name": name,
        "kind": "internal" if inside else "unknown" if one is None else "outside",
        "url": None if one is None or inside else f"{(public or '').rstrip('/')}/in/{name}",
        "preset": None if one is None else one.preset,
        "unsigned": None if one is None or inside else one.unsigned,
        "loopback_only": None if one is None or inside else one.loopback_only,
        "on_replay_of_dead": None if one is None else one.on_replay_of_dead,
        "received": counts.received,
        "replays": counts.replays,
        "refused": counts.refused,
        "last_at": None if counts.last_at is None else moment(counts.last_at),
    }


def acts(given: Mapping[str, str]) -> Query:
    """What people did, newest first."""
    filters.check_names(given, ("limit", "cursor"))
    limit = filters.read_limit(given)

    def query(db: Any) -> Json:
        made = generation(db)
        before = filters.read_cursor(given, made)
        found = list_acts(db, LARGEST if before is None else before, limit + 1)
        more = found[limit - 1].n if len(found) > limit else None
        shown = [
            {"n": a.n, "at": moment(a.at), "who": a.who, "what": a.what, "detail": a.detail} for a in found[:limit]
        ]
        return {"acts": shown, "next": filters.write_cursor(made, more)}

    return query
