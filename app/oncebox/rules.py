"""Rules: what the keys of a configuration must say together, and what is allowed but unwise."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from oncebox.address import is_loopback, is_url
from oncebox.content import EMPTY
from oncebox.secret import Secret
from oncebox.settings import Retention, Settings, Source, SourceReply, SourceRetention

# What of a source says something about requests from outside, and so nothing where none come.
OUTSIDE = (
    *("id", "type", "time", "url", "methods", "batch", "encoding", "reply", "handshake", "verify_token"),
    *("on_missing_id", "on_conflict", "loopback_only", "max_body", "silent"),
)


def problems(settings: Settings) -> Iterator[str]:
    """Every contradiction, each as a sentence that starts with its key."""
    kept = settings.retention
    if kept.keys < kept.bodies:
        yield "retention.keys: ids are kept at least as long as bodies; raise keys or lower bodies"
    for name, source in settings.sources.items():
        yield from _source(f"sources.{name}", source)
        yield from _kept(f"sources.{name}.retention", source, kept)
    for name, target in settings.targets.items():
        if (target.url is None) == (not target.command):
            yield f"targets.{name}: set exactly one of url and command"
    if settings.alerts.url is not None and settings.alerts.command:
        yield "alerts: set one of url and command, not both"
    if settings.alerts.url is not None and not is_url(settings.alerts.url.value):
        yield f"alerts.url: what {settings.alerts.url.ref} holds is not an http:// or https:// URL (not shown)"
    for key, bearers in (
        ("tokens", {name: one.secret for name, one in settings.tokens.items()}),
        ("callers", settings.callers),
    ):
        yield from _twins(key, bearers)
        yield from _unsendable(key, bearers)


def _source(key: str, source: Source) -> Iterator[str]:
    signed = source.preset is not None or source.signature is not None
    if source.verify_token is not None and any(source.verify_token.value == one.value for one in source.secrets):
        yield f"{key}: verify_token is one of the secrets; it travels in URLs and must not be able to sign"
    if source.reply is not None:
        yield from _reply(f"{key}.reply", source.reply)
    if source.internal:
        if signed or source.secrets or source.unsigned:
            yield f"{key}: internal = true takes nothing from outside; leave out preset, signature, secrets, unsigned"
        return
    if source.preset is None and source.id is None and source.on_missing_id.policy == "reject":
        yield f"{key}: nothing says where the id of a request is; set id, preset, on_missing_id or internal = true"
    if source.secrets and source.unsigned:
        yield f"{key}: unsigned = true checks nothing, yet there are secrets; leave out one of the two"
    elif source.secrets and not signed:
        yield f"{key}: nothing says how the secrets are used; set signature or preset"
    elif not signed and not source.unsigned:
        yield f"{key}: nothing proves who sends; set signature (or preset) and secrets, or say unsigned = true"
    elif not source.secrets and not source.unsigned:
        yield f'{key}: secrets is missing; set secrets = ["env:NAME"], or say unsigned = true'


def _reply(key: str, reply: SourceReply) -> Iterator[str]:
    if reply.status in EMPTY and reply.body:
        yield f"{key}: an answer with status {reply.status} has no body (RFC 9110); leave out body, or say status = 200"


def _kept(key: str, source: Source, kept: Retention) -> Iterator[str]:
    own = source.retention
    bodies = kept.bodies if own.bodies is None else own.bodies
    keys = kept.keys if own.keys is None else own.keys
    if keys < bodies and (own.bodies, own.keys) != (None, None):
        yield f"{key}: ids are kept at least as long as bodies; raise keys or lower bodies"


def _twins(key: str, secrets: Mapping[str, Secret]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name, secret in secrets.items():
        first = seen.setdefault(secret.value, name)
        if first != name:
            yield f"{key}.{name}: has the same secret as {key}.{first}, so nobody could tell them apart"


def _unsendable(key: str, secrets: Mapping[str, Secret]) -> Iterator[str]:
    """A token comes as `Authorization: Bearer …`: one line of letters, digits and signs."""
    for name, secret in secrets.items():
        if not re.fullmatch(r"[!-~]+(?: +[!-~]+)*", secret.value.strip(" \t")):
            yield (
                f"{key}.{name}: what {secret.ref} holds cannot be sent in a header (not shown); use letters, digits "
                "and signs of ASCII on one line, such as what `openssl rand -base64 32` prints"
            )


def secrets(settings: Settings) -> Iterator[tuple[str, Secret]]:
    """Every secret with its key: `sources.github.secrets[0]`."""
    for name, token in settings.tokens.items():
        yield f"tokens.{name}", token.secret
    for name, source in settings.sources.items():
        for index, secret in enumerate(source.secrets):
            yield f"sources.{name}.secrets[{index}]", secret
        if source.verify_token is not None:
            yield f"sources.{name}.verify_token", source.verify_token
    for name, target in settings.targets.items():
        if target.secret is not None:
            yield f"targets.{name}.secret", target.secret
    for name, secret in settings.callers.items():
        yield f"callers.{name}", secret
    if settings.alerts.url is not None:
        yield "alerts.url", settings.alerts.url


def warnings(settings: Settings, folder: Path, *, env_file_missing: bool) -> Iterator[str]:
    """What is allowed but should be known at the start; commands are looked for from `folder`."""
    server = settings.server
    for key, secret in secrets(settings):
        if secret.ref.startswith("plain:"):
            yield f"{key}: the secret stands in the file itself (plain:); keep it in env: or file: for real use"
    if env_file_missing and any(secret.ref.startswith("env:") for _, secret in secrets(settings)):
        yield f"env_file: {settings.env_file} does not exist; every env: secret came from the environment"
    if not is_loopback(server.host) and not (server.public_url or "").startswith("https://"):
        yield (
            f"server.host: {server.host} is reachable from other machines and public_url is not https, so tokens and "
            "bodies travel in the clear; put TLS in front and set public_url"
        )
    if settings.store.durability == "normal":
        yield "store.durability: normal may lose acknowledged events of the last moments before a power cut"
    for name, target in settings.targets.items():
        if target.command and (why := _no_command(target.command[0], folder)):
            yield f"targets.{name}.command: {why}, so nothing is delivered to it until there is"
    yield from idle(settings)
    yield from asleep(settings)


def _no_command(program: str, folder: Path) -> str:
    """Why a command could not be started now; "" if it could."""
    if "/" not in program:
        return "" if shutil.which(program) else f'there is no program "{program}" in $PATH'
    path = folder / program
    if not path.exists():
        return f"there is no {path}"
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"{path} is not a file that may be executed (chmod +x)"
    return ""


def idle(settings: Settings) -> Iterator[str]:
    """Keys that say nothing beside the others of their table."""
    plain = Source()
    for name, source in settings.sources.items():
        given = [key for key in OUTSIDE if getattr(source, key) != getattr(plain, key)]
        if source.internal and given:
            yield f"sources.{name}: internal = true takes nothing from outside, so {_these(given)} no effect"
        elif source.unsigned and source.signature is not None:
            yield f"sources.{name}: unsigned = true checks nothing, so signature has no effect"
    for name, target in settings.targets.items():
        if target.command and target.secret is not None:
            yield f"targets.{name}: secret signs what is posted to a URL; beside a command it has no effect"
    for number, route in enumerate(settings.routes):
        if route.on_dead != "hold" and route.ordered_by is None:
            yield f"routes[{number}]: on_dead is about events in order; without ordered_by it has no effect"


def _these(keys: list[str]) -> str:
    return f"{keys[0]} has" if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]} have"


def asleep(settings: Settings) -> Iterator[str]:
    """Settings that are read and that this version does not act on: nobody should rely on them unknowing."""
    if settings.backup.dir:
        yield "backup.dir: this version makes no backups; stop the server and copy the file"
    if settings.alerts.url or settings.alerts.command:
        yield "alerts: this version sends no alerts; watch /readyz and the log"
    kept = msgspec.structs.replace(settings.retention, replies=Retention().replies)
    if kept != Retention() or any(s.retention != SourceRetention() for s in settings.sources.values()):
        yield "retention: this version prunes nothing; the file grows with what comes in"
    if any(source.silent for source in settings.sources.values()):
        yield "silent: this version sends no alerts when a source is silent"
    if any(source.time for source in settings.sources.values()):
        yield "time: this version does nothing with the sender's own time but read it in signatures"
    if settings.server.trusted_proxies:
        yield "server.trusted_proxies: this version believes no forwarded headers, from whomever they come"
