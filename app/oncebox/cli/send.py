"""Send: a request as the sender would make it, signed with the source's own secret."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from oncebox.cli.options import config_option, json_option


@click.command()
@click.argument("source")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--id", help="The event's id; else a fresh one.")
@click.option("--type", "type_", help="The event's type.")
@click.option("--body", help="The body, in place of FILE (- is standard input).")
@click.option("--times", type=click.IntRange(1, 100_000), default=1, help="Send the very same request so many times.")
@click.option("--concurrent", type=click.IntRange(1, 256), default=1, help="So many of them at the same moment.")
@click.option("--tamper", is_flag=True, help="Change the body after it was signed; it should be refused.")
@click.option("--url", envvar="ONCEBOX_URL", help="The server; else the one that has the file open.")
@config_option
@json_option
def send(
    source: str,
    file: str | None,
    id: str | None,
    type_: str | None,
    body: str | None,
    times: int,
    concurrent: int,
    url: str | None,
    config: Path | None,
    *,
    tamper: bool,
    as_json: bool,
) -> None:
    """Send an event to a source as its sender would, and show what comes back."""
    from oncebox.cli.inbox import load_config, running_server
    from oncebox.errors import NotReachable

    if file is not None and body is not None:
        raise click.UsageError("Give FILE or --body, not both.")
    given = _read(file) if file is not None else os.fsencode(body) if body is not None else None
    loaded = load_config(config)
    address = url or running_server(loaded)
    if address is None:
        raise NotReachable(f"{loaded.store.path}: no server has this file open; start one with `oncebox serve`")
    path, headers, sent = prepare(loaded, source, address, given, id, type_)
    if tamper:
        sent = tampered(sent)
    answers = _send(address, path, headers, sent, times, concurrent)
    _show(answers, as_json=as_json)
    well = all((answer.status >= 400) if tamper else (answer.status < 300) for answer in answers)
    sys.exit(0 if well else 1)


def _read(file: str) -> bytes:
    with click.open_file(file, "rb") as opened:
        read: bytes = opened.read()
    return read


def prepare(
    config: Any, name: str, address: str, given: bytes | None, id: str | None, type: str | None
) -> tuple[str, dict[str, str], bytes]:
    """Path, headers and body of the request. Raises ConfigError for a source that cannot be sent to."""
    from oncebox.accept.doors import NO_PRESET, compile_door
    from oncebox.accept.presets import find_preset
    from oncebox.cli.craft import craft
    from oncebox.errors import ConfigError

    source = config.sources.get(name)
    if source is None or source.internal:
        why = "takes nothing from outside (internal = true)" if source else f"is not configured{_near(name, config)}"
        raise ConfigError(f"sources.{name} {why}")
    preset = find_preset(source.preset) if source.preset else NO_PRESET
    door = compile_door(name, source, config.server.max_body, config.server.public_url)
    draft = craft(
        source.id if source.id is not None else preset.id,
        source.type or preset.type,
        id=id or _fresh_id(),
        type=type,
        body=given,
        batch=source.batch or preset.batch,
        force_id=id is not None,
        extra=_signed_parts(preset.signature),
    )
    crafted = draft.finish()
    path = f"/in/{name}" + (f"?{crafted.query}" if crafted.query else "")
    url = door.signed_url(f"{address.rstrip('/')}{path}", crafted.query)
    signed = {}
    if door.verifier is not None:
        now = int(time.time())
        signed = door.verifier.sign(crafted.body, method="POST", url=url, headers=crafted.headers, now=now)
    return path, {**crafted.headers, **signed}, crafted.body


def _near(name: str, config: Any) -> str:
    from oncebox.wording import nearest

    return nearest(name, config.sources) or f"; there are: {', '.join(config.sources) or 'none'}"


def _fresh_id() -> str:
    """Digits only, since some senders' ids are numbers: the time, then chance."""
    return f"{time.time_ns() // 1_000_000}{secrets.randbelow(1000):03d}"


def _signed_parts(spec: Any) -> list[tuple[str, object]]:
    """What must be in the request so that it can be signed: the time, where the body carries it; a form."""
    from oncebox.accept.stamp import write_stamp

    if spec is None:
        return []
    stamp, parts = spec.timestamp, list[tuple[str, object]]()
    if "{form" in spec.message:
        parts.append(("form:sent_by", "oncebox send"))
    if stamp is not None and stamp.from_.startswith(("json:", "body:", "form:")):
        kind, _, place = stamp.from_.partition(":")
        spelt = f"envelope:/{place.replace('.', '/')}" if kind == "json" else stamp.from_
        written = write_stamp(stamp, int(time.time()))
        parts.append((spelt, int(written) if written.isdigit() else written))
    return parts


def tampered(body: bytes) -> bytes:
    """Another body: its last letter or digit is changed, so that JSON stays JSON."""
    for index in range(len(body) - 1, -1, -1):
        letter = body[index : index + 1]
        if letter.isalnum():
            return body[:index] + (b"1" if letter != b"1" else b"2") + body[index + 1 :]
    return body + b" "


def _send(address: str, path: str, headers: dict[str, str], body: bytes, times: int, concurrent: int) -> list[Any]:
    from oncebox.cli.client import Answer, Client

    client = Client(address)
    together = min(times, concurrent)
    barrier = threading.Barrier(together)

    def one(number: int) -> Answer:
        # Each full round starts at one moment; the last, smaller one does not wait for more.
        if number < times - times % together:
            barrier.wait()
        return client.request("POST", path, body, headers)

    with ThreadPoolExecutor(together) as pool:
        return list(pool.map(one, range(times)))


def _show(answers: list[Any], *, as_json: bool) -> None:
    from oncebox.cli.show import clean

    for answer in answers:
        replayed = answer.headers.get("idempotent-replayed") == "true"
        text = answer.body.decode("utf-8", "replace")
        if as_json:
            click.echo(json.dumps({"status": answer.status, "replayed": replayed, "body": text}, ensure_ascii=False))
        else:
            click.echo(f"{answer.status}  {'replayed' if replayed else '        '}  {clean(text)}")
    if len(answers) > 1 and not as_json:
        first = [a for a in answers if a.status < 300 and "idempotent-replayed" not in a.headers]
        same = "all the same bytes" if len({a.body for a in answers}) == 1 else "not all the same bytes"
        click.echo(f"{len(answers)} answers: {len(first)} accepted as new, {same}", err=True)
