"""Configured: the targets of `litestar.toml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from oncebox.config import Backoff, Config
from oncebox.config import Target as Settings
from oncebox.drain.command import CommandTarget
from oncebox.drain.http import Client, URLTarget
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.target import Target
from oncebox.drain.webhook import signing_key
from oncebox.errors import ConfigError


def configured(config: Config, client: Client, now: Callable[[], int], environ: Mapping[str, str]) -> list[Target]:
    """Every target of the configuration, ready to take deliveries. Raises ConfigError for a secret that is no key."""
    keys = signing_keys(config)
    return [
        _url(name, target, target.url, client, now, keys.get(name))
        if target.url is not None
        else _command(name, target, config, environ)
        for name, target in config.targets.items()
    ]


def signing_keys(config: Config) -> dict[str, bytes]:
    """The keys that deliveries are signed with, by target. Raises ConfigError that shows none."""
    keys: dict[str, bytes] = {}
    for name, target in config.targets.items():
        if target.secret is None:
            continue
        if target.url is None:
            raise ConfigError(f"targets.{name}.secret: it signs what is posted to a url; a command needs none")
        try:
            keys[name] = signing_key(target.secret.value)
        except ValueError as error:
            raise ConfigError(f"targets.{name}.secret: {target.secret.ref} {error}") from None
    return keys


def _url(name: str, target: Settings, url: str, client: Client, now: Callable[[], int], key: bytes | None) -> URLTarget:
    return URLTarget(
        name,
        url,
        client,
        now,
        key=key,
        timeout=target.timeout,
        concurrency=target.concurrency,
        rate=target.rate,
        retry=_policy(target.retry),
    )


def _command(name: str, target: Settings, config: Config, environ: Mapping[str, str]) -> CommandTarget:
    return CommandTarget(
        name,
        target.command,
        folder=config.folder,
        environ=environ,
        timeout=target.timeout,
        concurrency=target.concurrency,
        rate=target.rate,
        retry=_policy(target.retry),
    )


def _policy(backoff: Backoff) -> RetryPolicy:
    return RetryPolicy(**msgspec.structs.asdict(backoff))
