"""Init: the first files of a folder of the user's own, written."""

from __future__ import annotations

import shlex
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option("--for", "senders", help="Known senders to begin with, such as stripe,github.")
def init(folder: Path, senders: str | None) -> None:
    """Write the first files of an inbox; nothing is ever overwritten."""
    from oncebox.cli.starter import contents

    files = contents(folder.resolve().name, _listed(senders or ""))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        try:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
            click.echo(f"wrote  {folder / name}")
        except FileExistsError:
            click.echo(f"kept   {folder / name} (was there already)")
    into = [] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]
    fill = ["cp .env.example .env", "$EDITOR .env"] if senders else []
    click.echo(f"next: {' && '.join([*into, *fill, 'oncebox serve'])}")


def _listed(senders: str) -> list[str]:
    return list(dict.fromkeys(one.strip().replace("_", "-") for one in senders.split(",") if one.strip()))
