"""The command line: parses and prints, nothing else. Commands are imported only when they are used."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from difflib import get_close_matches
from typing import NoReturn

import click

from oncebox.errors import ConfigError, OnceboxError

INTERRUPTED = 130

# The three groups of --help, in the order in which they are listed: command -> its module here.
SECTIONS: dict[str, dict[str, str]] = {
    "Run": {"serve": "serve", "init": "init", "check": "check"},
    "Look and mend": {
        "events": "look",
        "show": "look",
        "lookup": "look",
        "tail": "tail",
        "stats": "look",
        "sources": "targets",
        "targets": "targets",
        "dead": "dead",
        "rerun": "rerun",
        "reruns": "rerun",
        "backtest": "backtest",
        "refused": "refused",
        "explain": "explain",
        "operations": "operations",
        "send": "send",
    },
    "Care": {},
}


class Commands(click.Group):
    """The commands in their groups. An error of ours is one line on standard error and its own exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for names in SECTIONS.values():
            if cmd_name in names:
                module = importlib.import_module(f"oncebox.cli.{names[cmd_name]}")
                command = getattr(module, cmd_name)
                assert isinstance(command, click.Command)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            close = get_close_matches(args[0], names, 1)
            hint = f'Did you mean "{close[0]}"?' if close else f"There are: {', '.join(names)}."
            ctx.fail(f'No such command "{args[0]}". {hint}')
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, command.get_short_help_str(90)) for name, command in commands if command is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except OnceboxError as error:
            _fail(ctx, error)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read has gone, and click ends without a word
                raise
            _fail(ctx, OnceboxError(of_system(error)))
        except UnicodeError as error:
            _fail(ctx, ConfigError(of_text(error)))
        except ExceptionGroup as group:
            # What goes wrong while the server's tasks already run comes wrapped.
            ours, others = group.split(OnceboxError)
            if ours is None or others is not None:
                raise
            _fail(ctx, _first(ours))


def of_system(error: OSError) -> str:
    """What the machine refused, in one sentence."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"{why}; the machine refused this, not the inbox"
    return f"{os.fsdecode(error.filename)}: {why}; name another place, or make this one readable and writable for you"


def of_text(error: UnicodeError) -> str:
    """Which text could not be read or written."""
    if isinstance(error, UnicodeDecodeError):
        return f"what was read is not UTF-8 text (byte {error.start}); convert it, or send it as base64"
    odd = [argument for argument in sys.argv[1:] if not _is_text(argument)]
    if odd:
        return f"{odd[0]!a} is not UTF-8 text; ids and names are"
    return f"a text cannot be written here ({error}); set PYTHONIOENCODING=utf-8"


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fail(ctx: click.Context, error: OnceboxError) -> NoReturn:
    click.echo(f"oncebox: {error}", err=True)
    ctx.exit(error.exit_code)


def _first(group: ExceptionGroup[OnceboxError]) -> OnceboxError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="oncebox", prog_name="oncebox")
def main() -> None:
    """A webhook and event inbox in one process and one file: accept once, answer the same, process later."""
