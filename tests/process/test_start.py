"""Starts that must be refused: each with a sentence and an exit code of its own, and at once."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
from pathlib import Path

import pytest

from process import hasty
from process.rig import Exit, Fresh, clean_stop, refused
from process.servers import Serve

pytestmark = pytest.mark.process

BROKEN_SETUP = """
from oncebox import Transaction, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table events (id text)")
"""
WORKING_SETUP = """
from oncebox import Transaction, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists mine (id text)")
"""


def said(exit: Exit, code: int, *words: str) -> None:
    """The exit code, every word, and no traceback."""
    assert exit.code == code, exit
    for word in words:
        assert word in exit.said, exit.said
    assert "Traceback" not in exit.said
    assert exit.said.splitlines()[-1] != ""


def test_a_fresh_interpreter_starts_and_stops_without_a_warning(tmp_path: Path) -> None:
    server = Fresh(tmp_path / "inbox", handlers=WORKING_SETUP)
    try:
        server.start()
        assert server.post("e").status == 202
        clean_stop(server)
    finally:
        server.end()
    assert "Warning" not in server.log()


def test_a_second_server_on_the_same_file_is_refused(serve: Serve) -> None:
    server = serve().start()
    said(refused(server.folder), 4, "inbox.db", f"process {server.pid}", f"http://127.0.0.1:{server.port}", "stop it")
    assert server.post("still here").status == 202
    clean_stop(server)


def test_a_second_start_of_the_same_configuration_names_the_first(serve: Serve) -> None:
    server = serve().start()
    said(refused(server.folder, "--port", str(server.port)), 4, f"process {server.pid}", "has this file open")


def test_a_symbolic_link_leads_to_the_same_lock(serve: Serve, tmp_path: Path) -> None:
    server = serve().start()
    link = tmp_path / "link.db"
    link.symlink_to(server.database)
    said(refused(server.folder, "--db", str(link)), 4, f"process {server.pid}")
    folder = tmp_path / "other"
    folder.symlink_to(server.folder)
    said(refused(server.folder, "--db", str(folder / "inbox.db")), 4, f"process {server.pid}")
    assert server.post("still here").status == 202


def test_a_second_hard_link_is_refused(serve: Serve, tmp_path: Path) -> None:
    server = serve().start()
    assert server.stop() == 0
    (tmp_path / "second.db").hardlink_to(server.database)
    said(refused(server.folder), 1, "hard link")


def test_a_killed_server_leaves_no_stale_lock(serve: Serve) -> None:
    server = serve().start()
    first = server.post("e")
    server.kill()
    server.start(within=5)
    assert server.post("e").body == first.body
    clean_stop(server)


def test_a_newer_file_is_refused_and_left_alone(serve: Serve) -> None:
    server = serve().start()
    assert server.stop() == 0
    with contextlib.closing(sqlite3.connect(server.database)) as db:
        db.execute("pragma user_version = 9999")
        db.execute("update meta set value = 9999 where name = 'min_version'")
        db.commit()
    said(refused(server.folder), 5, "inbox.db", "newer")
    assert server.rows("pragma user_version") == [(9999,)]


def test_a_folder_that_cannot_be_written_is_refused(serve: Serve, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    server, locked = serve(), tmp_path / "locked"
    locked.mkdir(mode=0o555)
    said(refused(server.folder, "--db", str(locked / "inbox.db")), 6, str(locked), "writable")


def test_a_folder_that_takes_no_files_is_refused(serve: Serve) -> None:
    said(refused(serve().folder, "--db", "/proc/inbox.db"), 6, "/proc")


def test_a_missing_folder_is_refused(serve: Serve, tmp_path: Path) -> None:
    said(refused(serve().folder, "--db", str(tmp_path / "nowhere" / "inbox.db")), 6, "nowhere", "create")


def test_a_file_that_is_no_database_is_refused_and_left_alone(serve: Serve) -> None:
    server = serve()
    server.database.write_bytes(b"dear diary\n" * 1000)
    exit = refused(server.folder)
    said(exit, 1, "inbox.db")
    assert server.database.read_bytes() == b"dear diary\n" * 1000


@pytest.mark.parametrize("handlers", ["", WORKING_SETUP], ids=["no-setup", "setup"])
def test_a_file_that_another_program_writes_is_said_to_be_held_and_not_damaged(serve: Serve, handlers: str) -> None:
    server = serve(handlers=handlers).start()
    assert server.stop() == 0
    with contextlib.closing(sqlite3.connect(server.database, isolation_level=None)) as db:
        db.execute("begin immediate")
        exit = refused(server.folder, code=hasty.CODE)
        said(exit, 1, "inbox.db", "another program holds the database", "close it")
        assert "damaged" not in exit.said
    server.start()
    clean_stop(server)


def test_a_port_in_use_is_refused(serve: Serve) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said(refused(serve().folder, "--port", str(port)), 7, f"127.0.0.1:{port}", "in use", "--port")


def test_a_misspelt_key_gets_a_suggestion(serve: Serve) -> None:
    said(refused(serve(config="[sources.other]\nid = 'header:X'\nunsined = true").folder), 2, "unsined", "unsigned")
    said(refused(serve("second", server="quue = 3").folder), 2, "quue", 'did you mean "queue"')


def test_a_broken_file_is_refused(serve: Serve) -> None:
    said(refused(serve(config="[sources.").folder), 2, "litestar.toml", "TOML")


def test_an_empty_secret_never_starts(serve: Serve) -> None:
    source = """
[sources.partner]
id = "body:/id"
signature = { scheme = "hmac", hash = "sha256", from = "header:X-Signature", encoding = "hex", message = "{body}" }
secrets = ["env:PARTNER"]
"""
    folder = serve(config=source).folder
    said(refused(folder, PARTNER=" "), 2, "sources.partner", "PARTNER")
    said(refused(folder), 2, "sources.partner", "PARTNER")


def test_a_source_without_a_secret_must_say_so(serve: Serve) -> None:
    said(refused(serve(config="[sources.open]\nid = 'header:X'").folder), 2, "sources.open", "unsigned")


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        ("import no_such_module_here", ("handlers", "no_such_module_here", "line 1")),
        ("x = (", ("handlers", "line 1")),
        ("raise SystemExit(0)", ("handlers", "SystemExit")),
        ("from oncebox import on\n@on('demo')\ndef f(a, b, c): ...", ("handlers", "f", "line 2")),
        ("from oncebox import on\n@on('demo')\ndef f(e): ...\n@on('d', name='f')\ndef g(e): ...", ("handlers", "f")),
    ],
)
def test_a_handler_module_that_cannot_be_used_stops_the_start(
    serve: Serve, handlers: str, words: tuple[str, ...]
) -> None:
    server = serve(handlers=handlers)
    said(refused(server.folder), 2, *words)
    assert not server.database.exists()


def test_a_setup_that_fails_stops_the_start(serve: Serve) -> None:
    server = serve(handlers=BROKEN_SETUP)
    said(refused(server.folder), 2, "setup", "events")
    assert server.rows("pragma integrity_check") == [("ok",)]


def test_a_missing_configuration_that_is_named_is_refused(serve: Serve) -> None:
    said(refused(serve().folder, "--config", "elsewhere.toml"), 2, "elsewhere.toml", "--config")
