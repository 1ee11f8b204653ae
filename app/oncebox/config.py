"""Config: `litestar.toml`, the environment and the flags as one frozen value."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from oncebox import rules
from oncebox.defaults import print_defaults
from oncebox.errors import ConfigError
from oncebox.kind import MinFree, MissingId, Place
from oncebox.secret import Lookup, Secret, parse_env
from oncebox.settings import (
    Alerts,
    Backoff,
    Backup,
    Retention,
    Route,
    Server,
    Settings,
    Source,
    SourceReply,
    SourceRetention,
    Store,
    Target,
    Token,
)
from oncebox.table import UNREAD, keys, kinds, read_table, read_value

__all__ = [
    "Alerts",
    "Backoff",
    "Backup",
    "Config",
    "MinFree",
    "MissingId",
    "Retention",
    "Route",
    "Secret",
    "Server",
    "Settings",
    "Source",
    "SourceReply",
    "SourceRetention",
    "Store",
    "Target",
    "Token",
    "keys",
    "load",
    "print_defaults",
    "salvage",
]

FILE = "litestar.toml"
# What runs without any file: one source to try things out with, for this machine only.
BUILT_IN = {
    "sources": {
        "demo": {
            "id": "header:Idempotency-Key",
            "type": "header:X-Event-Type",
            "unsigned": True,
            "loopback_only": True,
        }
    }
}
_OVERRIDES = (
    ("host", "ONCEBOX_HOST", "server", "host"),
    ("port", "ONCEBOX_PORT", "server", "port"),
    ("db", "ONCEBOX_DB", "store", "path"),
)


class Config(Settings, frozen=True, kw_only=True):
    """All settings, with paths made absolute. `path` is None when no file was found."""

    folder: Path = Path()
    path: Path | None = None
    warnings: tuple[str, ...] = ()


def load(path: Path | None, *, environ: Mapping[str, str], overrides: Mapping[str, object]) -> Config:
    """The configuration by file, then environment, then flags (`host`, `port`, `db`; None is not given).

    Reads files, keeps nothing: the same files and arguments give the same value. Raises ConfigError with every problem.
    """
    file = _locate(path, environ)
    where = str(file) if file else "built-in configuration"
    raw = _parse(file) if file else BUILT_IN
    folder = _absolute(file).parent if file else Path.cwd()
    problems: list[str] = []
    lookup, missing = _lookup(raw, folder, environ, problems)
    place = Place("", lookup, problems)
    config = read_table(Config, {key: value for key, value in raw.items() if key != "tool"}, place)
    given = _given(environ, overrides, place)
    _refuse(where, problems)
    assert isinstance(config, Config)
    config = msgspec.structs.replace(config, folder=folder, path=_absolute(file) if file else None)
    config = _override(_resolve(config), given)
    _refuse(where, [*rules.problems(config), *_no_file(config)])
    warnings = rules.warnings(config, folder, env_file_missing=missing)
    return msgspec.structs.replace(config, warnings=tuple(warnings))


def salvage(path: Path | None, environ: Mapping[str, str]) -> Config:
    """What a file that cannot be used still says about the database and the tokens, for those who only look for the
    server that runs with it. Raises ConfigError where there is no such file."""
    file = _locate(path, environ)
    raw = _parse(file, whole=False) if file else BUILT_IN
    folder = _absolute(file).parent if file else Path.cwd()
    place = Place("", _lookup(raw, folder, environ, [])[0], [])

    def read(shape: type[msgspec.Struct], table: str, key: str) -> object:
        within = raw.get(table)
        return read_value(kinds(shape)[key], within.get(key) if isinstance(within, dict) else None, place)

    tokens = read_value(kinds(Settings)["tokens"], raw.get("tokens", {}), place)
    at, url = read(Store, "store", "path"), read(Server, "server", "public_url")
    config = Config(
        folder=folder,
        path=_absolute(file) if file else None,
        server=Server(public_url=url if isinstance(url, str) else None),
        store=Store(path=at) if isinstance(at, Path) else Store(),
        tokens={name: one for name, one in tokens.items() if isinstance(one, Token)}
        if isinstance(tokens, dict)
        else {},
    )
    given = _given({key: value for key, value in environ.items() if key == "ONCEBOX_DB"}, {}, place)
    return _override(_resolve(config), [one for one in given if one[2] is not UNREAD])


def _parts(text: str) -> dict[str, object]:
    """The tables of a file, or of a broken one those that can each be read for itself."""
    found: dict[str, object] = {}
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        pass
    for part in re.split(r"(?m)^(?=[ \t]*\[)", text):
        try:
            read = tomllib.loads(part)
        except (ValueError, RecursionError):
            continue
        for key, value in read.items():
            before = found.setdefault(key, value)
            if before is not value and isinstance(before, dict) and isinstance(value, dict):
                before.update(value)
    return found


def _locate(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = path or (Path(environ["ONCEBOX_CONFIG"]) if environ.get("ONCEBOX_CONFIG", "").strip() else None)
    if named is None:
        return Path(FILE) if Path(FILE).exists() else None
    if not named.exists():
        by = "--config" if path else "$ONCEBOX_CONFIG"
        raise ConfigError(f"{named}: no such file, yet {by} names it; correct the path, or make one with: oncebox init")
    return named


def _parse(file: Path, *, whole: bool = True) -> dict[str, object]:
    try:
        read = file.read_bytes()
        return tomllib.loads(read.decode("utf-8-sig")) if whole else _parts(read.decode("utf-8-sig", "replace"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}, line {line}: not UTF-8; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}; texts need quotes, tables a [heading]") from None


def _lookup(
    raw: Mapping[str, object], folder: Path, environ: Mapping[str, str], problems: list[str]
) -> tuple[Lookup, bool]:
    named = raw.get("env_file")
    if not isinstance(named, str) or not named.strip():
        return Lookup(folder, environ), False
    try:
        values = parse_env((folder / named).read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return Lookup(folder, environ, {}, named), True
    except OSError as error:
        values = {}
        problems.append(f"env_file: {folder / named} cannot be read: {error.strerror}")
    except ValueError as error:
        values = {}
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        problems.append(f"env_file: {folder / named}: {reason}")
    return Lookup(folder, environ, values, named), False


def _given(environ: Mapping[str, str], overrides: Mapping[str, object], place: Place) -> list[tuple[str, str, object]]:
    """What the environment and the flags put in place of the file: (table, key, value)."""
    found: list[tuple[str, str, object]] = []
    for flag, variable, table, key in _OVERRIDES:
        value, label = overrides.get(flag), f"--{flag}"
        if value is None:
            value, label = environ.get(variable) or None, variable
        if value is not None:
            kind = kinds(kinds(Settings)[table].shape or Settings)[key]
            at = Place(label, place.lookup, place.problems)
            found.append((table, key, read_value(kind, _typed(key, value), at)))
    return found


def _typed(key: str, value: object) -> object:
    if key == "path":
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    if key == "port" and isinstance(value, str) and re.fullmatch("[0-9]{1,5}", value):
        return int(value)
    return value


def _resolve(config: Config) -> Config:
    """Relative paths are meant from the folder of the file."""
    server, store, backup, folder = config.server, config.store, config.backup, config.folder
    replace = msgspec.structs.replace
    return replace(
        config,
        server=replace(server, public_url=server.public_url.rstrip("/") if server.public_url else None),
        store=replace(store, path=folder / store.path),
        backup=replace(backup, dir=folder / backup.dir if backup.dir else None),
        env_file=folder / config.env_file if config.env_file else None,
    )


def _override(config: Config, given: Iterable[tuple[str, str, object]]) -> Config:
    for table, key, value in given:
        # A path in a flag or variable is meant from where the person stands, not from the folder of the file.
        meant = _absolute(value) if isinstance(value, Path) else value
        inner = msgspec.structs.replace(getattr(config, table), **{key: meant})
        config = msgspec.structs.replace(config, **{table: inner})
    return config


def _no_file(config: Config) -> Iterable[str]:
    if config.store.path.is_dir():
        yield f"store.path: {config.store.path} is a folder; name the file in it, such as oncebox.db"


def _refuse(where: str, problems: Iterable[str]) -> None:
    found = list(problems)
    if len(found) == 1:
        raise ConfigError(f"{where}: {found[0]}")
    if found:
        raise ConfigError("\n  ".join([f"{where}: {len(found)} problems", *found]))


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(Path.cwd() / path))
