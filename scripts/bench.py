"""Figures of real server processes on loopback: accepts, replays, drain, memory. Bounded; ends what it started."""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

SCRIPTS = Path(__file__).parent
SECRET = "bench-secret-of-no-value"  # noqa: S105  # it signs requests to ourselves only
HANDLERS = """
import time
from oncebox import Event, Transaction, on, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (id text primary key, at integer not null) strict")

@on("bench")
def insert(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?, ?)", (event.id, time.time_ns()))
"""
# A target of the same name that finishes nothing: what is accepted meanwhile becomes a backlog.
WAITING = """
import asyncio
from oncebox import Event, on

@on("bench", timeout="1h")
async def insert(event: Event) -> None:
    await asyncio.sleep(3600)
"""
Figures = dict[str, Any]


class Inbox:
    """A folder with a configuration and a file, for one `oncebox serve` after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = folder / "bench.db"
        self.port = free_port()

    def write(self, handlers: str = "") -> None:
        module = f"handlers_{time.time_ns()}"
        named = f'"{module}"' if handlers else ""
        if handlers:
            (self.folder / f"{module}.py").write_text(handlers)
        (self.folder / "litestar.toml").write_text(
            f"handlers = [{named}]\n"
            f'[server]\nport = {self.port}\ngrace = "5s"\n[store]\npath = "{self.db}"\ndurability = "full"\n'
            '[sources.bench]\nid = "body:/id"\ntype = "body:/type"\n'
            'signature = { scheme = "hmac", hash = "sha256", from = "header:X-Signature", encoding = "hex", '
            f'message = "{{body}}" }}\nsecrets = ["plain:{SECRET}"]\n'
        )

    @contextmanager
    def serve(self) -> Iterator[subprocess.Popen[bytes]]:
        """A running server; ended with SIGTERM, and it must end with 0."""
        code = "from oncebox.cli import main; main()"
        command = [sys.executable, "-c", code, "serve", "--config", str(self.folder / "litestar.toml")]
        with started(command, self.port, self.folder / "server.log") as process:
            yield process
        if process.returncode != 0:
            raise SystemExit(f"the server ended with {process.returncode}:\n{(self.folder / 'server.log').read_text()}")

    def ask(self, sql: str) -> Any:
        """The first value of a query on the file, read-only."""
        with closing(sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)) as db:
            return db.execute(sql).fetchone()[0]


@contextmanager
def started(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that answers on its port; ended by its own id on the way out."""
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS.parent / "app")}
    with log.open("ab") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            wait_for(process, port, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with closing(socket.socket()) as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit(f"the server on port {port} did not start:\n{log.read_text()}")


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        return int(probe.getsockname()[1])


def load(port: int, **plan: object) -> Figures:
    """Run the load generator in its own process; anything but 202 ends the measurement."""
    wanted = json.dumps({"port": port, "secret": SECRET} | plan)
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "load.py"), wanted], stdout=subprocess.PIPE, check=True, timeout=600
    )
    figures: Figures = json.loads(done.stdout)
    if figures["wrong"]:
        raise SystemExit(f"answers other than 202: {figures['wrong']}")
    return figures


def accepts(args: argparse.Namespace, folder: Path) -> Figures:
    """New events (or only replays) against the constant answer, in alternation."""
    inbox = Inbox(folder)
    inbox.write(WAITING if args.routed else "")
    constant = free_port()
    yardstick = [sys.executable, str(SCRIPTS / "constant_server.py"), str(constant)]
    result: Figures = {}
    first = 0
    with inbox.serve(), started(yardstick, constant, folder / "constant.log"):
        for connections in args.connections:
            pairs = []
            for pair in range(args.pairs):
                plan = plan_of(args, connections, f"{connections:03d}{pair:03d}")
                synced = sync_ms(folder / "probe")
                pairs.append((load(inbox.port, **plan) | {"sync": synced}, load(constant, **plan) | {"sync": 0.0}))
                first += pairs[-1][0]["first"]
                show(connections, pair, *pairs[-1])
            result[str(connections)] = summary(pairs)
    stored = inbox.ask("select count(*) from events")
    if stored != first:
        raise SystemExit(f"{first} events were acknowledged and the file has {stored}")
    return result | {"events": first}


def sync_ms(probe: Path) -> float:
    """What this disk takes for one durable write of about a commit's size, just now; the median of a hundred."""
    taken = []
    with probe.open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(16384))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    probe.unlink()
    return round(median(taken) * 1e3, 3)


def plan_of(args: argparse.Namespace, connections: int, run: str) -> Figures:
    return {
        "run": run,
        "connections": connections,
        "seconds": args.seconds,
        "requests": int(args.ceiling * (args.seconds + 0.5)),
        "random_ids": args.random_ids,
        "known": 1000 if args.command == "replays" else 0,
    }


def show(connections: int, pair: int, ours: Figures, constant: Figures) -> None:
    columns = f"{'per s':>9} {'p50 ms':>7} {'p99 ms':>7}"
    if pair == 0:
        print(f"\nconns pair | oncebox {columns} | constant {columns} | ratio | disk sync ms")
    left, right = (f"{one['rate']:9.0f} {one['p50']:7.3f} {one['p99']:7.3f}" for one in (ours, constant))
    ratio = ours["rate"] / constant["rate"]
    print(
        f"{connections:5} {pair + 1:4} |         {left} |          {right} | {ratio:.3f} | {ours['sync']:12.3f}",
        flush=True,
    )


def summary(pairs: list[tuple[Figures, Figures]]) -> Figures:
    """Medians over the pairs; the ratio is the median of the pairs' ratios."""
    figures: Figures = {"ratio": round(median(ours["rate"] / constant["rate"] for ours, constant in pairs), 3)}
    for side, name in ((0, "oncebox"), (1, "constant")):
        figures[name] = {
            key: round(median(pair[side][key] for pair in pairs), 3)
            for key in ("rate", "p50", "p99", "load_cpu", "sync")
        }
    print(f"median: {figures}", flush=True)
    return figures


def drain(args: argparse.Namespace, folder: Path) -> Figures:
    """A backlog through a transactional handler that does one insert: alone, then with accepts coming in."""
    result: Figures = {}
    for name, rate in (("alone", 0), ("with_accepts", args.rate)):
        (folder / name).mkdir()
        inbox = Inbox(folder / name)
        inbox.write(WAITING)
        with inbox.serve():
            filled = load(inbox.port, run="fill00", connections=64, seconds=600, warm_up=0, requests=args.events)
        inbox.write(HANDLERS)
        with inbox.serve():
            coming = {}
            if rate:
                coming = load(inbox.port, run="live00", connections=64, seconds=args.seconds, requests=10**6, rate=rate)
            total = filled["first"] + coming.get("first", 0)
            wait_until_done(inbox, total)
        span = inbox.ask("select max(at) - min(at) from effects where id like 'evt_fill00%'")
        result[name] = {"done_per_s": round(filled["first"] / span * 1e9), "events": total} | {
            f"accept_{key}": coming[key] for key in ("rate", "p50", "p99") if coming
        }
        print(f"{name}: {result[name]}", flush=True)
    return result


def wait_until_done(inbox: Inbox, total: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if inbox.ask("select count(*) from sqlite_master where name = 'effects'"):
            done = inbox.ask("select count(*) from effects")
            if done == total:
                return
        time.sleep(0.25)
    raise SystemExit(f"not all of {total} events were handled within two minutes")


def memory(args: argparse.Namespace, folder: Path) -> Figures:
    """Resident memory of the server before, and after so many events with a handler at work."""
    inbox = Inbox(folder)
    inbox.write(HANDLERS)
    with inbox.serve() as process:
        before = resident(process.pid, "VmRSS")
        got = load(inbox.port, run="memory", connections=64, seconds=600, warm_up=0, requests=args.events)
        right_after = resident(process.pid, "VmRSS")
        wait_until_done(inbox, got["first"])
        result = {
            "events": got["first"],
            "start_mb": before,
            "after_mb": right_after,
            "drained_mb": resident(process.pid, "VmRSS"),
            "peak_mb": resident(process.pid, "VmHWM"),
        }
    print(result)
    return result


def resident(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise SystemExit(f"no {field} of process {pid}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("command", choices=["accepts", "replays", "drain", "memory"])
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="where the file lies (a folder below it; default: here)"
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--pairs", type=int, default=5, help="alternations at each number of connections")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run, after half a second of warm-up")
    parser.add_argument("--ceiling", type=int, default=40_000, help="requests prepared for each second of a run")
    parser.add_argument("--random-ids", action="store_true")
    parser.add_argument("--routed", action="store_true", help="accepts: each event has a delivery, too")
    parser.add_argument("--events", type=int, default=None, help="drain: the backlog (50000); memory: in all (100000)")
    parser.add_argument("--rate", type=float, default=3000, help="drain: accepts a second meanwhile")
    args = parser.parse_args()
    if args.events is None:
        args.events = 100_000 if args.command == "memory" else 50_000
    return args


def main() -> None:
    args = arguments()
    commands = {"accepts": accepts, "replays": accepts, "drain": drain, "memory": memory}
    with tempfile.TemporaryDirectory(prefix="oncebox-bench-", dir=args.dir.resolve()) as folder:
        figures = commands[args.command](args, Path(folder))
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    print(json.dumps({"bench": args.command, "machine": machine} | figures))


if __name__ == "__main__":
    main()
