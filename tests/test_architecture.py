"""The shape of the package: who imports whom, and that nothing but SQLite opens the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import architecture
from architecture import Module

MODULES = architecture.read_package(Path(__file__).parent.parent / "app" / "oncebox")

# The places that may open a file in the server's process, and why that file is never the database, its -wal or its
# -shm: closing a descriptor of one of those drops the process's locks on it.
MAY_OPEN: dict[tuple[str, str], str] = {
    ("config", "_parse"): "litestar.toml itself",
    ("config", "_lookup"): "the env_file that the configuration names",
    ("operate.token", "read_token"): "the admin token, in a file of its own beside the database",
    ("operate.token", "_make"): "the same file's draft, under a name that did not exist before",
    ("secret", "Lookup._file"): "a secret that the configuration names",
    ("store.migrations", "schema"): "the schema that is part of the package",
}


def in_server_process(module: Module) -> bool:
    """Commands other than `serve` are processes of their own; the lock's module opens the lock and nothing else."""
    return module.name != "store.lock" and (module.room != "cli" or module.name == "cli.serve")


def opened() -> list[tuple[str, str, str]]:
    return list(architecture.opened_files(filter(in_server_process, MODULES.values())))


@pytest.mark.parametrize("rule", architecture.RULES, ids=lambda rule: str(rule.__name__))
def test_the_package_keeps_the_rule(rule: Callable[[Mapping[str, Module]], Iterator[str]]) -> None:
    assert list(rule(MODULES)) == []


def test_nothing_in_the_servers_process_opens_a_file_without_a_reason() -> None:
    unexpected = [found for found in opened() if found[:2] not in MAY_OPEN]
    assert unexpected == [], "give the reason in MAY_OPEN, if it can never be the database, its -wal or its -shm"


def test_each_permission_to_open_a_file_is_still_needed() -> None:
    assert MAY_OPEN.keys() - {found[:2] for found in opened()} == set()


def test_the_package_is_found() -> None:
    assert {"model", "errors", "store"} <= MODULES.keys()


def verdict(rule: Callable[[Mapping[str, Module]], Iterator[str]], sources: dict[str, str]) -> list[str]:
    known = dict.fromkeys(
        ("", "model", "errors", "config", "settings", "watch", "store", "server", "cli", "accept", "drain", "perform"),
        "",
    )
    return list(rule({name: Module(name, source) for name, source in (known | sources).items()}))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model", "from oncebox.store import Store"),
        ("model", "from oncebox import store"),
        ("model", "import oncebox.config"),
        ("model", "from oncebox.settings import Settings"),
        ("store", "from oncebox import settings"),
        ("store", "from oncebox.config import Config"),
        ("store.writer", "def f():\n    from oncebox.drain import drain"),
        ("accept.inbox", "from oncebox.drain.retry import next_step"),
        ("drain.drain", "import oncebox.accept"),
        ("operate.api", "from oncebox.server import create_app"),
        ("server", "from oncebox.cli import main"),
        ("drain.drain", "from oncebox.watch import Watch"),
        ("store.writer", "from oncebox import Event"),
        ("config", "from oncebox.store import Store"),
        ("accept.inbox", "from oncebox.operate import api"),
        ("perform.desk", "from oncebox.accept import inbox"),
        ("perform.desk", "from oncebox.drain import staging"),
        ("drain.drain", "import oncebox.perform"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(module: str, source: str) -> None:
    assert len(verdict(architecture.arrows, {module: source})) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("", "from oncebox.server import OnceboxPlugin\nfrom oncebox.model import Event"),
        ("accept.inbox", "from oncebox.config import Config\nfrom oncebox.store import Store\nimport msgspec"),
        ("cli.look", "from oncebox.server import create_app\nfrom oncebox.errors import OnceboxError"),
        ("model", "from oncebox.errors import OnceboxError"),
        ("drain.drain", "from oncebox import model\nfrom oncebox.drain.retry import next_step"),
        ("testing", "from oncebox.config import Config\nfrom oncebox.server import create_app"),
    ],
)
def test_an_import_that_points_down_is_fine(module: str, source: str) -> None:
    assert verdict(architecture.arrows, {module: source}) == []


def test_a_cycle_is_found_once_even_when_a_function_hides_it() -> None:
    sources = {
        "store.a": "from oncebox.store import b",
        "store.b": "def f():\n    import oncebox.store.c",
        "store.c": "from oncebox.store.a import x",
    }
    assert verdict(architecture.cycles, sources) == ["a cycle: store.a > store.b > store.c > store.a"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("drain.handler", "import sqlite3"),
        ("operate.api", "from sqlite3 import Row"),
        ("cli.look", "import aiosqlite"),
        ("accept.inbox", "from litestar import asgi"),
        ("store", "import litestar.types"),
        ("operate.api", "import aiohttp"),
        ("drain.http", "import httpx"),
        ("server", "from rich.table import Table"),
        ("server", "import click"),
        ("perform.ingress", "from litestar import asgi"),
    ],
)
def test_an_outside_package_in_the_wrong_room_is_found(module: str, source: str) -> None:
    assert len(verdict(architecture.owners, {module: source})) == 1


def test_outside_packages_in_their_own_rooms_are_fine() -> None:
    sources = {
        "store.sqlite": "import sqlite3, aiosqlite",
        "accept.ingress": "from litestar import asgi",
        "operate.api": "from litestar import get",
        "server": "from litestar import Litestar",
        "drain.http": "import aiohttp",
        "cli.look": "import click, rich",
    }
    assert verdict(architecture.owners, sources) == []


@pytest.mark.parametrize("source", ["print('x')", "run(print)", "import sys\nsys.stdout.write('x')"])
def test_printing_is_found_everywhere_but_in_the_command_line(source: str) -> None:
    assert verdict(architecture.printing, {"server": source}) != []
    assert verdict(architecture.printing, {"cli.look": source}) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import random",
        "import datetime\ndef f():\n    return datetime.datetime.now()",
        "from datetime import date\nDAY = date.today()",
        "from oncebox.config import Config",
        "from oncebox.store import Store",
        "def f():\n    import asyncio",
    ],
)
@pytest.mark.parametrize(
    "module", ["route", "accept.signature", "accept.signature_jws", "drain.retry", "perform.fingerprint"]
)
def test_a_pure_module_with_a_clock_or_a_connection_is_found(module: str, source: str) -> None:
    assert len(verdict(architecture.pure, {module: source})) == 1
    assert verdict(architecture.pure, {"drain.drain": source}) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("model", "X = 1"),
        ("store.utils", '"""Words."""'),
        ("operate.base", '"""Words."""'),
        ("model", '"""Words."""\n' + "#\n" * 299),
        ("model", '"""Words."""\nfrom . import errors'),
        ("model", '"""Words."""\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import x'),
        ("model", '"""Words."""\nimport typing\nif typing.TYPE_CHECKING:\n    import x'),
    ],
)
def test_a_module_out_of_shape_is_found(module: str, source: str) -> None:
    assert len(list(architecture.shape({module: Module(module, source)}))) == 1


def test_a_module_of_299_lines_with_a_docstring_is_fine() -> None:
    source = '"""Words."""\n' + "#\n" * 298
    assert list(architecture.shape({"model": Module("model", source)})) == []


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "run(open, path)",
        "os.open(path, os.O_RDONLY)",
        "path.open('rb')",
        "Path.open(path)",
        "path.open()",
        "path.open(mode='rb')",
        "path.open(mode)",
        "path.read_bytes()",
        "run(path.read_text)",
        "path.write_bytes(b'')",
        "shutil.copyfile(a, b)",
        "from shutil import copy",
        "import shutil as s",
        "import mmap",
        "os.sendfile(a, b, 0, 1)",
        "from os import open",
        "await anyio.open_file(path)",
        "await anyio.Path(path).open()",
        "from anyio import Path",
        "await readers.open(path.read_bytes())",
        "File(path)",
    ],
)
def test_an_opened_file_is_found_with_its_function(code: str) -> None:
    source = f"class Backup:\n    async def copy(self):\n        {code}\n"
    found = list(architecture.opened_files([Module("operate.backup", source)]))
    assert [(module, function) for module, function, _ in found] == [("operate.backup", "Backup.copy")] * len(found)
    assert found


@pytest.mark.parametrize(
    "code",
    [
        "path.stat()",
        "os.statvfs(path)",
        "shutil.disk_usage(path)",
        "from shutil import disk_usage",
        "SqliteStore.open(path)",
        "await self._readers.open()",
        "door.open(request, now)",
        "if breaker.open: pass",
        "state = 'open'",
        "subprocess.run(['oncebox', 'verify', path])",
    ],
)
def test_looking_at_a_file_without_opening_it_is_fine(code: str) -> None:
    assert list(architecture.opened_files([Module("operate.backup", f"async def f():\n    {code}\n")])) == []


def test_the_serve_command_is_part_of_the_servers_process_and_other_commands_are_not() -> None:
    assert in_server_process(Module("cli.serve", ""))
    assert not in_server_process(Module("cli.care", ""))
