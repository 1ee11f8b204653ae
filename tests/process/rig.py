"""A real server process for each test: started, talked to, killed and read as an outsider would."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from process import nursery
from process.nursery import Born

APP = nursery.APP
CODE = "from oncebox.cli import main; main()"
TOKEN = "for-the-tests"
CONFIG = """
handlers = [{handlers}]

[server]
port = 0
log = "text"
{server}

[tokens]
admin = "plain:{token}"

[store]
path = "inbox.db"

[sources.demo]
id = "header:Idempotency-Key"
type = "header:X-Event-Type"
unsigned = true
loopback_only = true
{more}
"""
READY = re.compile(r"ready address=http://([^ :]+):(\d+) ")
RESET = struct.pack("ii", 1, 0)
STATES = ("pending", "parked", "running", "done", "dead")


class Answer(NamedTuple):
    """What a client got. Header names are lower-case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def problem(self) -> str:
        """The slug of a problem answer; the test fails if it is none."""
        assert self.headers["content-type"] == "application/problem+json", self
        told = json.loads(self.body)
        assert told["status"] == self.status, told
        return str(told["type"]).removeprefix("urn:oncebox:problem:")


class Exit(NamedTuple):
    """How a process that should not stay has ended."""

    code: int
    said: str
    took: float


def until(true: Callable[[], object], within: float, what: str = "") -> None:
    """Look again and again, at most `within` seconds; the only waiting there is."""
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, f"not within {within} s: {what or true}"
        time.sleep(0.02)


class Server:
    """One inbox in a folder, as a process that can be started, killed and started again."""

    code = CODE
    words: tuple[str, ...] = ("serve",)

    def __init__(self, folder: Path, *, handlers: str = "", config: str = "", server: str = "") -> None:
        self.folder = folder
        self.database = folder / "inbox.db"
        self.log_file = folder / "server.log"
        self.starts = 0
        self._process: Born | subprocess.Popen[bytes] | None = None
        self._seen = 0
        folder.mkdir(exist_ok=True)
        if handlers:
            (folder / "handlers.py").write_text(handlers)
        named = '"handlers"' if handlers else ""
        text = CONFIG.format(handlers=named, token=TOKEN, server=server, more=config)
        (folder / "litestar.toml").write_text(text)

    @property
    def process(self) -> Born | subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def launch(self, *arguments: str) -> None:
        """Start without waiting for anything."""
        self._seen = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = launch(self.folder, *self.words, *arguments, log=log, code=self.code)
        self.starts += 1

    def start(self, within: float = 15.0) -> Server:
        """Start and wait for the line that says where it listens."""
        self.launch()
        until(lambda: READY.search(self.log()) or not self.alive(), within, "ready")
        found = READY.search(self.log())
        assert found, f"it did not start:\n{self.log()}"
        self.host, self.port = found[1], int(found[2])
        return self

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What this start has written so far."""
        with self.log_file.open("rb") as log:
            log.seek(self._seen)
            return log.read().decode()

    def kill(self) -> None:
        """As a power cut, but for the disk."""
        self.process.kill()
        self.process.wait(10)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, within: float) -> int:
        """The exit code."""
        return self.process.wait(within)

    def stop(self, within: float = 20.0) -> int:
        self.signal()
        return self.wait(within)

    def end(self) -> None:
        """Whatever the test left behind."""
        if self.alive():
            self.kill()

    def connect(self, timeout: float = 20.0) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout)

    def post(self, id: str, body: bytes = b"{}", *, type: str = "t", source: str = "demo") -> Answer:
        with Client(self) as client:
            return client.post(id, body, type=type, source=source)

    def get(self, path: str) -> Answer:
        with Client(self) as client:
            return client.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})

    def raw(self, text: bytes, timeout: float = 10.0) -> bytes:
        """Send these bytes; all that comes back until the server closes or nothing more comes."""
        with self.connect(timeout) as line:
            line.sendall(text)
            return read_answer(line)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Read the file from outside."""
        with contextlib.closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=5)) as db:
            return db.execute(sql, parameters).fetchall()

    def states(self) -> dict[str, int]:
        return dict(self.rows("select state, count(*) from v_deliveries group by 1"))

    def until_quiet(self, within: float) -> None:
        """Until nothing is owed any more."""
        until(lambda: not set(self.states()) & {"pending", "parked", "running"}, within, "all processed")


class Fresh(Server):
    """A server that an interpreter of its own runs, with nothing from the nursery."""

    def launch(self, *arguments: str) -> None:
        command = [sys.executable, "-W", "default", "-c", CODE, "serve", *arguments]
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, env=environment(), stdout=log, stderr=log)


class Client:
    """One connection that is used again, as a sender's library does."""

    def __init__(self, server: Server, timeout: float = 20.0) -> None:
        self._line = http.client.HTTPConnection(server.host, server.port, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def post(self, id: str, body: bytes = b"{}", *, type: str = "t", source: str = "demo") -> Answer:
        return self.request("POST", f"/in/{source}", body, {"Idempotency-Key": id, "X-Event-Type": type})

    def request(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        self._line.request(method, path, body or None, dict(headers or {}))
        got = self._line.getresponse()
        return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())


def launch(folder: Path, *arguments: str, log: Any, code: str = CODE, **environ: str) -> Born:
    """A command of oncebox in a folder, with nothing of the caller's environment that configures it."""
    return nursery.opened().bear(code, arguments, folder, environment(**environ), log)


def environment(**more: str) -> dict[str, str]:
    """The caller's, without what configures us."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONCEBOX_")}
    path = os.pathsep.join([str(APP), *filter(None, [env.get("PYTHONPATH")])])
    return env | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **more}


def refused(folder: Path, *arguments: str, within: float = 5.0, code: str = CODE, **environ: str) -> Exit:
    """How `serve` ends that must not start; it is given `within` seconds. `code` runs in place of the usual."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = launch(folder, "serve", *arguments, log=log, code=code, **environ)
        late = False
        try:
            status = process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            status, late = process.wait(), True
        took = time.monotonic() - begin
        log.seek(0)
        said = log.read().decode()
    assert not late, f"it did not end within {within} s: {said}"
    return Exit(status, said, took)


def read_answer(line: socket.socket) -> bytes:
    """All until the other side closes; with a Content-Length, until the body is whole."""
    got = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while chunk := line.recv(65536):
            got += chunk
            if _is_whole(got):
                break
    return got


def _is_whole(got: bytes) -> bool:
    head, found, body = got.partition(b"\r\n\r\n")
    if not found or head.startswith(b"HTTP/1.1 100"):
        return False
    length = re.search(rb"(?i)content-length: *(\d+)", head)
    return length is not None and len(body) >= int(length[1])


def parse(got: bytes) -> Answer:
    """A raw answer; a leading 100 Continue is passed over."""
    if got.startswith(b"HTTP/1.1 100"):
        got = got.partition(b"\r\n\r\n")[2]
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split(" ")[1]), headers, body)


def reset(line: socket.socket) -> None:
    """Hang up so that the other side is told at once, with an RST."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    line.close()


def at_once(jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run all in threads; their results in order, or the first exception."""
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = jobs[number]()
        except BaseException as error:  # noqa: BLE001  # raised below, in the test's own thread
            errors.append(error)

    threads = [Thread(target=run, args=(number,)) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def sound(server: Server) -> None:
    """The file after a stop: its structure, its books, its relations. Raises AssertionError with what is wrong."""
    assert not server.alive()
    assert server.rows("pragma integrity_check") == [("ok",)]
    assert server.rows("pragma foreign_key_check") == []
    written = dict.fromkeys(STATES, 0) | dict(
        server.rows(f"select what, sum(n) from totals where minute = 0 and what in {STATES} group by 1")
    )
    assert written == dict.fromkeys(STATES, 0) | server.states()
    events = server.rows("select count(*) from events")[0][0]
    received = server.rows("select source, n from totals where minute = 0 and what = 'received' and n <> 0 order by 1")
    assert received == server.rows("select source, count(*) from events group by 1 order by 1")
    assert server.rows("select count(*), count(distinct source || ' ' || id), count(distinct seq) from v_events") == [
        (events, events, events)
    ]
    assert server.rows("select count(*) from events where seq not in (select seq from payloads)") == [(0,)]
    assert server.rows("select count(*) from v_deliveries where seq not in (select seq from events)") == [(0,)]
    assert server.rows("select count(*) from v_events v where v.state = 'running'") == [(0,)]
    assert server.rows(
        "select (select value from meta where name = 'next_seq') > (select coalesce(max(seq), 0) from events)"
    ) == [(1,)]


def clean_stop(server: Server, within: float = 20.0) -> None:
    """Stop by SIGTERM and look at what is left."""
    assert server.stop(within) == 0, server.log()
    wal = server.database.with_name(server.database.name + "-wal")
    assert not wal.exists() or wal.stat().st_size == 0
    assert server.rows("select value from meta where name = 'clean'") == [(1,)]
    sound(server)


def poisoned(server: Server) -> Iterator[tuple[str, str]]:
    """(id, error) of what was quarantined."""
    yield from server.rows(
        "select e.id, d.error from v_deliveries d join v_events e using (seq) where d.error like 'poison%' order by 1"
    )
