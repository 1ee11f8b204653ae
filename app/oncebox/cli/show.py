"""Show: tables and texts, with colours on a terminal and plain elsewhere."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

BRIEF = 300
_WAY = "Traceback (most recent call last):"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COLOURS = {"done": "green", "dead": "red", "pending": "yellow", "running": "cyan", "unrouted": "magenta"}


def print_json(value: object) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def clean(value: object) -> str:
    """A text that a sender may have chosen, without anything that a terminal would obey."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


def brief(text: str) -> str:
    """An error in one line: without the way to it, and no longer than one reads."""
    first, *more = [line.strip() for line in text.partition(_WAY)[0].splitlines() if line.strip()] or [""]
    line = f"{first}: {' '.join(more)}" if more else first
    return clean(line if len(line) <= BRIEF else f"{line[:BRIEF]}…")


def when(at: str | None) -> str:
    """A time as people read it, in UTC to the second."""
    return "" if at is None else f"{at[:10]} {at[11:19]} UTC"


def stamp(at: str | None) -> str:
    """The same for a column whose head says UTC."""
    return when(at).removesuffix(" UTC")


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Rows under their heads."""
    texts = [["" if cell is None else clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(heads, texts)
        return
    widths = [max(len(row[i]) for row in [list(heads), *texts]) for i in range(len(heads))]
    for row in [[head.upper() for head in heads], *texts]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    Console().print(table)


def print_facts(facts: Sequence[tuple[str, Any]]) -> None:
    """Names and values, one a line; None is left out."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        if value is not None:
            click.echo(f"{name.ljust(width)}  {clean(value)}")


def size(count: int) -> str:
    """Bytes as people read them."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
