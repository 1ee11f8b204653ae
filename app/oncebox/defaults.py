"""Defaults: every key with its default, as TOML."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from oncebox.kind import Kind
from oncebox.settings import Settings
from oncebox.table import keys


def print_defaults() -> str:
    """Every key with its default and a short comment. Valid TOML; what has no default is commented out."""
    lines = ["# Every key of litestar.toml with its default."]
    for heading, sets in _tables().items():
        lines += ["", *_heading(heading, sets)]
        lines += [_line(heading, key, kind, default) for key, kind, default in sets]
    return "\n".join(lines) + "\n"


def _tables() -> dict[str, list[tuple[str, Kind, object]]]:
    tables: dict[str, list[tuple[str, Kind, object]]] = {"": []}
    for key, kind, default in keys(Settings):
        heading, _, name = key.rpartition(".")
        if kind.shape is None and kind.form == "named":
            tables[f"{key}.NAME"] = [("NAME", kind, msgspec.NODEFAULT)]
        elif kind.shape is None:
            tables.setdefault(heading, []).append((name, kind, default))
    return tables


def _heading(heading: str, sets: list[tuple[str, Kind, object]]) -> Iterator[str]:
    if heading == "":
        return
    if sets[0][0] == "NAME":
        yield f"[{heading.removesuffix('.NAME')}]"
    elif heading.endswith("[]"):
        yield f"# [[{heading[:-2]}]]"
    else:
        yield f"# [{heading}]" if "NAME" in heading else f"[{heading}]"


def _line(heading: str, key: str, kind: Kind, default: object) -> str:
    asleep = "# " if "NAME" in heading or "[]" in heading else ""
    doc = f"  # {kind.doc}" if kind.doc else ""
    if default is msgspec.NODEFAULT:
        return f"# {key} = …{doc} (must be given)" if key != "NAME" else f"# NAME = …{doc}"
    if default is None:
        return f"# {key} = …{doc} (not set)"
    return f"{asleep}{key} = {kind.show(default)}{doc}"
