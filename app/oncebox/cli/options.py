"""Options: what several commands take."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration; else $ONCEBOX_CONFIG, ./litestar.toml, or the built-in one.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Number(click.FloatRange):
    """A number within bounds; `nan` is within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


class Asked:
    """Which inbox is meant, and how its answer is shown."""

    def __init__(self, config: Path | None, url: str | None, token: str | None, *, as_json: bool) -> None:
        self.config = config
        self.url = url
        self.token = token
        self.as_json = as_json


def asking(command: Command) -> Command:
    """Options of a command that asks an inbox; it gets them as one `asked`."""

    @config_option
    @json_option
    @click.option("--url", envvar="ONCEBOX_URL", help="The server to ask; else the one that has the file open.")
    @click.option("--token", envvar="ONCEBOX_TOKEN", help="The token to ask with; else the configured or made one.")
    @functools.wraps(command)
    def wrapped(*args: Any, config: Path | None, as_json: bool, url: str | None, token: str | None, **more: Any) -> Any:
        return command(*args, asked=Asked(config, url or None, token or None, as_json=as_json), **more)

    return wrapped


def choosing(command: Command) -> Command:
    """Options by which a command chooses events of the past."""

    @click.option("--source", help="All of this source.")
    @click.option("--type", "type_", help='All of a type, or a glob such as "invoice.*".')
    @click.option("--state", type=click.Choice(["done", "dead", "unrouted"]), help="Only what is in this state.")
    @click.option("--since", help='From then on: "2h" back, or RFC 3339.')
    @click.option("--until", help='Up to then: "2h" back, or RFC 3339.')
    @click.option("--where", multiple=True, metavar="POINTER=JSON", help="Only where the body has this value there.")
    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> Any:
        return command(*args, **given)

    return wrapped
