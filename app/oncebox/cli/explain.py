"""Explain: why a request is refused, or what would become of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from oncebox.cli.options import Asked, asking

SEE = "looking for the configuration? see oncebox check; for requests that were refused? see oncebox refused"


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--refused", "n", type=click.IntRange(1), help="This refused request, as it was kept.")
@asking
def explain(asked: Asked, file: str | None, n: int | None) -> None:
    """Tell why requests are refused: JSON lines in, JSON lines out.

    They are judged by today's configuration, without a server, from FILE or else standard input.

    A line in is {"source", "method", "url", "headers", "body" or "body_base64", "at"}, the last in unix seconds.
    """
    import msgspec

    from oncebox.cli.inbox import load_config
    from oncebox.clock import wall_clock
    from oncebox.errors import OnceboxError

    if n is not None and file is not None:
        raise click.UsageError("Give FILE or --refused, not both.")
    judge = Judge(load_config(asked.config))
    wrong = 0
    for number, line in _refused(asked, n) if n is not None else _lines(file):
        try:
            click.echo(msgspec.json.encode(judge(line, wall_clock())))
        except OnceboxError as error:
            wrong += 1
            click.echo(f"oncebox: line {number}: {error}", err=True)
    if wrong:
        raise OnceboxError(f"{wrong} of the lines could not be read; the others were judged")
    if sys.stdout.isatty():
        click.echo(SEE, err=True)


class Judge:
    """The configured sources, asked about one line at a time.

    A line that says under which full URL it was sent is judged by that, unless the source has a `url` of its own.
    """

    def __init__(self, config: Any) -> None:
        import msgspec

        from oncebox.accept.doors import compile_doors

        self._at_public_url = compile_doors(config)
        self._as_called = {
            name: msgspec.structs.replace(door, url=config.sources[name].url)
            for name, door in self._at_public_url.items()
        }

    def __call__(self, line: bytes, now: int) -> Any:
        """The verdict on one line. Raises OnceboxError for a line that is no request."""
        from oncebox.accept.explain import explain, incoming_of, read_asked

        given = read_asked(line)
        doors = self._as_called if "://" in given.url else self._at_public_url
        door = doors.get(given.source)
        return explain(door, given.source, incoming_of(given, door, now))


def _lines(file: str | None) -> Iterator[tuple[int, bytes]]:
    with click.open_file(file or "-", "rb") as opened:
        for number, line in enumerate(opened, 1):
            if line.strip():
                yield number, line


def _refused(asked: Asked, n: int) -> Iterator[tuple[int, bytes]]:
    import msgspec

    from oncebox.cli.inbox import open_inbox

    with open_inbox(asked) as inbox:
        found = inbox.refused_request(n)
    # It is judged under the URL that is configured today, as `refused accept` would.
    path = found["url"].partition("://")[2].partition("/")[2]
    yield 1, msgspec.json.encode({**found, "url": f"/{path}"})
