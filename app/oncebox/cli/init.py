"""Init: the first files of a folder of the user's own."""

from __future__ import annotations

from pathlib import Path

import click

TOML = """\
# {name}: an Oncebox inbox. `oncebox check` tells what is in here, `oncebox check --print-defaults` every key there is.
handlers = ["handlers"]               # handlers.py beside this file
env_file = ".env"

[server]
#public_url = "https://hooks.example.com"   # what senders call, when a proxy with TLS stands in front

[store]
path = "oncebox.db"

# Something to try things out with: anybody on this machine may send, nobody else.
#   curl -i http://127.0.0.1:8640/in/demo -H 'Idempotency-Key: order-1' -d '{{"hello": "world"}}'
[sources.demo]
id = "header:Idempotency-Key"
type = "header:X-Event-Type"
unsigned = true
loopback_only = true
"""

SOURCE = """
# Tell {preset} to send to http(s)://YOUR-HOST/in/{name}
[sources.{name}]
preset = "{preset}"
secrets = ["env:{variable}"]
"""

MISSING_ID = """\
# {preset} sends no id that can be relied on. "unique": each request is its own event, its retries too.
on_missing_id = "unique"
"""

HANDLERS = '''\
"""What happens when an event comes in. `def f(event, db)` commits together with the mark that it is done."""

from oncebox import Event, Transaction, on, setup


@setup
def tables(db: Transaction) -> None:
    """Runs at every start."""
    db.execute("create table if not exists greetings (id text primary key, said text not null) strict")


@on("demo")
def greet(event: Event, db: Transaction) -> None:
    """Its row and "done" are written in one transaction: exactly once, whatever fails."""
    db.execute("insert into greetings (id, said) values (?, ?) on conflict do nothing", (event.id, event.text()))
'''

IGNORED = """\
.env
__pycache__/
*.db
*.db-wal
*.db-shm
*.db.lock
*.db.token
"""


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), default=".")
@click.option("--for", "senders", help="Known senders to begin with, such as stripe,github.")
def init(folder: Path, senders: str | None) -> None:
    """Write the first files of an inbox; nothing is ever overwritten."""
    files = contents(folder.resolve().name, [one.strip() for one in (senders or "").split(",") if one.strip()])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        try:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
            click.echo(f"wrote  {folder / name}")
        except FileExistsError:
            click.echo(f"kept   {folder / name} (was there already)")
    into = "" if folder == Path() else f"cd {folder} && "
    fill = "cp .env.example .env, fill it in, then: " if senders else ""
    click.echo(f"next: {fill}{into}oncebox serve")


def contents(name: str, senders: list[str]) -> dict[str, str]:
    """The files by name. Raises ConfigError for a sender that is not known."""
    from oncebox.accept.presets import find_preset

    toml, env = TOML.format(name=name), "# Copy this to .env and fill it in. Keep .env out of version control.\n"
    for sender in senders:
        preset = find_preset(sender)
        names = {"name": sender.replace("_", "-"), "preset": preset.name, "variable": f"{preset.name.upper()}_SECRET"}
        toml += SOURCE.format(**names) + (MISSING_ID.format(**names) if preset.id is None else "")
        env += f"{names['variable']}=\n"
    return {
        "litestar.toml": toml,
        "handlers.py": HANDLERS,
        ".env.example": env,
        ".gitignore": IGNORED,
    }
