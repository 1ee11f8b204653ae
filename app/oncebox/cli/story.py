"""Story: what became of one event, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oncebox.cli.show import brief, clean, size, when
from oncebox.cli.standing import reason

Json = dict[str, Any]


def tell(event: Json, targets: Mapping[str, Json] = {}, refused: Sequence[Json] = ()) -> list[str]:
    """From the first receipt to the last attempt, one sentence each. `targets` are as they are listed, by name,
    `refused` the requests of its source that were turned away, newest first."""
    return [
        _accepted(event),
        _replays(event),
        *_conflicts(event, refused),
        *[_delivery(one, targets.get(one["target"])) for one in event["deliveries"]],
        *_unrouted(event),
        *_body(event),
    ]


def _accepted(event: Json) -> str:
    kind = f"type {clean(event['type'])}, " if event["type"] is not None else ""
    head = f"{event['source']} {clean(event['id'])} (seq {event['seq']}, {kind}{size(event['size'])})"
    if event["parent"] is not None:
        return f"{head}: emitted once on {when(event['received_at'])} while event {event['parent']} was processed."
    if event["verified"] == "emitted":
        by = "by an operation or by the application around the inbox"
        return f"{head}: emitted once on {when(event['received_at'])}, {by}."
    receipt = event.get("receipt")
    answered = f", answered {receipt['status']}" if receipt else ""
    how = "unsigned" if event["verified"] == "unsigned" else f"verified by {event['verified']}"
    return f"{head}: accepted once on {when(event['received_at'])}, {how}{answered}."


def _replays(event: Json) -> str:
    count = event["replays"]
    if not count:
        return "No repeats so far."
    other = ""
    if event["conflicts"]:
        kept = len(event.get("variants", ()))
        other = f"; {event['conflicts']} of them with another body, answered like the first"
        other += f" ({_many(kept, 'other body', 'other bodies')} kept to look at)" if kept else ""
    return f"{_many(count, 'repeat')} absorbed, last on {when(event['last_replay_at'])}{other}."


def _conflicts(event: Json, refused: Sequence[Json]) -> list[str]:
    said = f"the id {event['id']!r} of source "
    mine = [one for one in refused if one["problem"] == "id-conflict" and one["detail"].startswith(said)]
    if not mine:
        return []
    last, were = mine[0], "was" if len(mine) == 1 else "were"
    told = f"{_many(len(mine), 'request')} with this id and another body {were} refused (422 id-conflict), the last on "
    return [f"{told}{when(last['at'])}; see oncebox refused {last['n']}."]


# Only what commits together with its mark has committed; of the others is known that they ended well.
_DONE = {"transactional": "committed with its effect", "url": "was answered well", "command": "ended with exit code 0"}


def _delivery(one: Json, target: Json | None) -> str:
    kind = (target or {}).get("kind") or ""
    waits = f" {_held(target)}" if target is not None and one["state"] in ("pending", "parked") else ""
    return f"{_runs(one, kind)}{waits}".rstrip()


def _held(target: Json) -> str:
    """What else it waits for."""
    if target["state"] == "ready":
        return ""
    why = reason(target)
    return f"{target['name']} is {target['state']}" + (f": {brief(why)}." if why else ".")


def _runs(one: Json, kind: str) -> str:
    earlier = [tried for tried in one.get("history", []) if tried["outcome"] == "ok" and tried["run"] < one["run"]]
    if not earlier:
        return _now(one, kind)
    last = when(earlier[-1]["started_at"])
    if len(earlier) == 1:
        return f"{_now(one, kind)} An earlier run {_DONE.get(kind, 'finished')} on {last}."
    return f"{_now(one, kind)} {len(earlier)} earlier runs ended well, the last on {last}."


def _now(one: Json, kind: str) -> str:
    name, attempt = one["target"], one["attempts"]
    history = one.get("history", [])
    if one["state"] == "done":
        last = history[-1] if history else {}
        took = f" in {last['duration_ms']:.1f} ms" if last.get("duration_ms") is not None else ""
        again = f" of run {one['run']}" if one["run"] > 1 else ""
        how = _DONE.get(kind, "finished")
        return f"{name} {how} on {when(one['processed_at'])}, on attempt {attempt}{again}{took}{_failed(history)}."
    why = f": {brief(one['error'])}" if one["error"] else ""
    if one["state"] == "dead":
        return f"{name} is dead after {_many(attempt, 'attempt')}{why}. It stays until somebody has it run again."
    if one["state"] == "running":
        return f"{name} is running attempt {attempt}{_failed(history)}."
    if one["state"] == "parked":
        return f"{name} waits for its turn: an earlier event of the same order key is not finished."
    if not attempt:
        return f"{name} waits for its first attempt, due since {when(one['next_attempt_at'])}."
    last_why = f": {brief(history[-1]['detail'] or history[-1]['outcome'])}" if history else why
    return f"{name} waits for attempt {attempt + 1}, due {when(one['next_attempt_at'])}; the last one failed{last_why}."


def _failed(history: list[Json]) -> str:
    failed = [one for one in history if one["outcome"] != "ok"]
    if not failed:
        return ""
    last = failed[-1]
    why = brief(last["detail"] or last["outcome"])
    return f" after {_many(len(failed), 'failed attempt')}, the last one on {when(last['started_at'])}: {why}"


def _unrouted(event: Json) -> list[str]:
    if event["deliveries"]:
        return []
    return ["Nothing was asked to happen: no handler and no route took this event when it came (unrouted)."]


def _body(event: Json) -> list[str]:
    return [] if event["body"] == "kept" else [f"Its body was {event['body']}; a repeat is still recognised by its id."]


def _many(count: int, word: str, words: str = "") -> str:
    return f"{count} {word}" if count == 1 else f"{count} {words or word + 's'}"
