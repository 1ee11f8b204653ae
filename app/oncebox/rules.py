"""Rules: what the keys of a configuration must say together, and what is allowed but unwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address

from oncebox.secret import Secret
from oncebox.settings import Retention, Settings, Source, SourceRetention, Store


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
    if settings.alerts.url is not None and not settings.alerts.url.value.startswith(("https://", "http://")):
        yield f"alerts.url: what {settings.alerts.url.ref} holds is not an http:// or https:// URL (not shown)"
    yield from _twins("tokens", {name: token.secret for name, token in settings.tokens.items()})
    yield from _twins("callers", settings.callers)


def _source(key: str, source: Source) -> Iterator[str]:
    signed = source.preset is not None or source.signature is not None
    if source.verify_token is not None and any(source.verify_token.value == one.value for one in source.secrets):
        yield f"{key}: verify_token is one of the secrets; it travels in URLs and must not be able to sign"
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


def warnings(settings: Settings, *, env_file_missing: bool) -> Iterator[str]:
    """What is allowed but should be known at the start."""
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
    yield from asleep(settings)


def asleep(settings: Settings) -> Iterator[str]:
    """Settings that are read and that this version does not act on: nobody should rely on them unknowing."""
    if settings.backup.dir:
        yield "backup.dir: this version makes no backups; stop the server and copy the file"
    if settings.alerts.url or settings.alerts.command:
        yield "alerts: this version sends no alerts; watch /readyz and the log"
    if settings.retention != Retention() or any(s.retention != SourceRetention() for s in settings.sources.values()):
        yield "retention: this version prunes nothing; the file grows with what comes in"
    if settings.store.wal_max != Store().wal_max:
        yield "store.wal_max: this version does not report the log's size; look at `oncebox stats`"
    if settings.callers:
        yield "callers: this version answers no operations (/do)"
    if any(source.silent for source in settings.sources.values()):
        yield "silent: this version sends no alerts when a source is silent"
    if settings.server.trusted_proxies:
        yield "server.trusted_proxies: this version believes no forwarded headers, from whomever they come"


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reachable from this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
