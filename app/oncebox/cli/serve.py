"""Serve: run the server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from oncebox.cli.options import config_option


@click.command()
@config_option
@click.option("--host", help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port to listen on; 0 takes any free one.")
@click.option("--db", type=click.Path(path_type=Path, dir_okay=False), help="The database file.")
@click.option("--fd", type=click.IntRange(0), help="Listen on this open socket, as a supervisor hands it over.")
def serve(config: Path | None, host: str | None, port: int | None, db: Path | None, fd: int | None) -> None:
    """Take in events and process them, until stopped."""
    from oncebox.cli.inbox import load_config
    from oncebox.serve import serve as run

    sys.exit(run(lambda: load_config(config, host=host, port=port, db=db), fd))
