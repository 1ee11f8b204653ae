"""Tables: TOML tables and lists as frozen structs, every key known and every problem named."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import date, time
from functools import cache
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec

from oncebox.kind import NAME, Kind, Place
from oncebox.wording import nearest, shown, wrong

UNREAD = object()


@cache
def kinds(shape: type[msgspec.Struct]) -> dict[str, Kind]:
    """The keys of a table in the order of its struct, each with its kind."""
    found: dict[str, Kind] = {}
    for name, hint in get_type_hints(shape, include_extras=True).items():
        if get_origin(hint) is Annotated:
            found[name] = next(part for part in get_args(hint) if isinstance(part, Kind))
    return found


def keys(shape: type[msgspec.Struct], above: str = "") -> Iterator[tuple[str, Kind, object]]:
    """Every key below a struct with its kind and default: `server.port`, `sources.NAME.id`, `routes[].to`.

    The default is `msgspec.NODEFAULT` where the key must be given.
    """
    defaults = {field.name: _default(field) for field in msgspec.structs.fields(shape)}
    for name, kind in kinds(shape).items():
        key = f"{above}{name}"
        yield key, kind, defaults[name]
        if kind.shape is not None:
            yield from keys(kind.shape, key + {"table": ".", "named": ".NAME.", "many": "[]."}[kind.form])


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def read_value(kind: Kind, value: object, place: Place) -> object:
    """The value as its kind reads it; a problem is reported to the place and UNREAD returned."""
    try:
        return kind.read(value, place)
    except ValueError as error:
        place.report(str(error))
        return UNREAD


def read_table(shape: type[msgspec.Struct], value: object, place: Place) -> object:
    """A struct from a table, or UNREAD once everything that is wrong in it has been reported."""
    if not isinstance(value, dict):
        raise wrong(value, "a table")
    known, before = kinds(shape), len(place.problems)
    for name in (name for name in value if name not in known):
        place.below(name).report(f"unknown key{nearest(name, known) or _inside(name, known) or _listed(known)}")
    for field in msgspec.structs.fields(shape):
        if field.required and field.name not in value:
            place.report(f'"{field.name}" is missing: {known[field.name].doc}')
    found = {name: read_value(known[name], value[name], place.below(name)) for name in known if name in value}
    return UNREAD if len(place.problems) > before else shape(**found)


def _inside(name: str, known: dict[str, Kind]) -> str:
    """A key that belongs one table further down: written above its heading, or under none."""
    tables = ((above, kind.shape) for above, kind in known.items() if kind.form == "table")
    found = [f"{above}.{name}" for above, shape in tables if shape is not None and name in kinds(shape)]
    return f'; did you mean "{found[0]}"?' if len(found) == 1 else ""


def _listed(known: dict[str, Kind]) -> str:
    return f"; known here: {', '.join(known)}"


def table(shape: type[msgspec.Struct], doc: str, *, short: str = "") -> Kind:
    """A table of fixed keys. `short` names the key that a bare text stands for."""

    def read(value: object, place: Place) -> object:
        return read_table(shape, {short: value} if short and isinstance(value, str) else value, place)

    return Kind(doc, read, shape=shape, form="table")


def named(item: Kind, doc: str) -> Kind:
    """A table whose keys are names that the user gives."""

    def read(value: object, place: Place) -> dict[str, object]:
        if not isinstance(value, dict):
            raise wrong(value, "a table of names")
        for name in value:
            if not re.fullmatch(NAME, name):
                place.report(f"{shown(name)} is not a name: 1 to 64 of a-z, 0-9, _ and -, not starting with _ or -")
        return {name: read_value(item, member, place.below(name)) for name, member in value.items()}

    return Kind(doc, read, shape=item.shape, form="named")


def many(item: Kind, doc: str, *, least: int = 0, single: bool = False) -> Kind:
    """A list of at least so many values; with `single`, one text alone stands for a list of it."""

    def read(value: object, place: Place) -> tuple[object, ...]:
        if single and isinstance(value, str):
            return (read_value(item, value, place),)
        if not isinstance(value, list):
            raise ValueError(f"a list in [ ] is needed{_table_hint(item)}, not {_sort(value)}")
        if len(value) < least:
            raise ValueError("the list is empty; put something into it or leave the key out")
        return tuple(read_value(item, member, place.below(index)) for index, member in enumerate(value))

    return Kind(doc, read, shape=item.shape, form="many" if item.shape else "value")


def either(item: Kind, doc: str) -> Kind:
    """One value, or a list of them, told apart."""
    several = many(item, doc, least=1)

    def read(value: object, place: Place) -> object:
        return several.read(value, place) if isinstance(value, list) else item.read(value, place)

    return Kind(doc, read)


def _table_hint(item: Kind) -> str:
    return " (a table of a list is headed by [[ ]])" if item.shape else ""


def _sort(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    return "a text" if isinstance(value, str) else "a single value"


def raw(doc: str, *, pointers: bool = False) -> Kind:
    """A table of JSON values, kept as it is written; with `pointers` its keys are JSON pointers."""

    def read(value: object, place: Place) -> dict[str, object]:
        if not isinstance(value, dict):
            raise wrong(value, "a table")
        for name, member in value.items():
            if pointers and name and not re.fullmatch(r"(?s)(?:/(?:[^~/]|~[01])*)+", name):
                place.report(f'{shown(name)} is not a JSON pointer such as "/data/object/id"')
            if not _is_json(member):
                place.below(name).report(f"{shown(member)} has no JSON form; put a text, number, true or false there")
        return value

    return Kind(doc, read)


def _is_json(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_json, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, date | time) and not (isinstance(value, float) and not math.isfinite(value))
