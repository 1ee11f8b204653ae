"""Figures of real server processes on loopback. Bounded in time and number; ends what it started."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from outbound import urls
from rig import SCRIPTS, SECRET, WAITING, Figures, Inbox, free_port, load, loading, outcome, resident, started, sync_ms

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
CALLED = """
from oncebox import Reply, Request, Transaction, operation, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists made (id integer primary key, what text not null) strict")

@operation("make")
def make(request: Request, db: Transaction) -> Reply:
    [(id,)] = db.execute("insert into made (what) values (?) returning id", (request.json()["id"],))
    return Reply(201, {"id": id}, headers={"Location": f"/made/{id}"})
"""


def accepts(args: argparse.Namespace, folder: Path) -> Figures:
    """New events (or only replays) against the constant answer."""
    inbox = Inbox(folder)
    inbox.write(WAITING if args.routed else "")
    return alternated(args, inbox, ["events"])


def operations(args: argparse.Namespace, folder: Path) -> Figures:
    """Calls of an operation that does one insert, each with a new key, against the constant answer."""
    inbox = Inbox(folder)
    inbox.write(CALLED, f'[callers]\nbench = "plain:{SECRET}"\n')
    return alternated(args, inbox, ["made", "operations"], operation="make", status=201)


def alternated(args: argparse.Namespace, inbox: Inbox, tables: list[str], **ours: object) -> Figures:
    """The inbox and the constant answer in alternation; `ours` is what is planned otherwise for the inbox.

    What was answered as new is then counted in the tables.
    """
    constant = free_port()
    yardstick = [sys.executable, str(SCRIPTS / "constant_server.py"), str(constant)]
    result: Figures = {}
    first = 0
    with inbox.serve(), started(yardstick, constant, inbox.folder / "constant.log"):
        for connections in args.connections:
            pairs = []
            for pair in range(args.pairs):
                plan = plan_of(args, connections, f"{connections:03d}{pair:03d}")
                synced = sync_ms(inbox.folder / "probe")
                got = load(inbox.port, **plan, **ours) | {"sync": synced}
                pairs.append((got, load(constant, **plan) | {"sync": 0.0}))
                first += got["first"]
                show(connections, pair, *pairs[-1])
            result[str(connections)] = summary(pairs)
    for table in tables:
        stored = inbox.ask(f"select count(*) from {table}")  # noqa: S608  # one of those above
        if stored != first:
            raise SystemExit(f"{first} were acknowledged and {table} has {stored}")
    return result | {tables[0]: first}


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


def junk(args: argparse.Namespace, folder: Path) -> Figures:
    """Good traffic at a fixed rate, alone and beside requests with wrong signatures, in alternation."""
    inbox = Inbox(folder)
    inbox.write()
    good: Figures = {"connections": 16, "rate": args.rate, "requests": 10**6, "seconds": args.seconds}
    bad: Figures = good | {
        "secret": "wrong",
        "status": 401,
        "rate": args.junk,
        "seconds": args.seconds + 1,
        "aside": True,
    }
    pairs, sent = [], 0
    with inbox.serve():
        for pair in range(args.pairs):
            alone = load(inbox.port, run=f"a{pair:05d}", **good)
            with loading(inbox.port, run=f"j{pair:05d}", **bad) as others:
                beside = load(inbox.port, run=f"b{pair:05d}", **good)
                sent += outcome(others)["answered"]
            pairs.append((alone, beside))
            print(
                *(f"{one['rate']:.0f}/s mean {one['mean']:.3f} p99 {one['p99']:.3f} ms" for one in pairs[-1]),
                flush=True,
            )
    slower = {key: round(median(two[key] / one[key] for one, two in pairs) - 1, 3) for key in ("mean", "p50", "p99")}
    result: Figures = {"junk": sent, "slower": slower, "kept": inbox.ask("select count(*) from refused")}
    print(result)
    return result


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("command", choices=["accepts", "replays", "operations", "drain", "urls", "junk", "memory"])
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="where the file lies (a folder below it; default: here)"
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--pairs", type=int, default=5, help="alternations at each number of connections")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run, after half a second of warm-up")
    parser.add_argument("--ceiling", type=int, default=40_000, help="requests prepared for each second of a run")
    parser.add_argument("--random-ids", action="store_true")
    parser.add_argument("--routed", action="store_true", help="accepts: each event has a delivery, too")
    parser.add_argument(
        "--events", type=int, default=None, help="drain, urls: the backlog (50000, 20000); memory: in all (100000)"
    )
    parser.add_argument("--rate", type=float, default=3000, help="drain, junk: accepts a second meanwhile")
    parser.add_argument("--junk", type=float, default=1000, help="junk: refused requests a second")
    args = parser.parse_args()
    if args.events is None:
        args.events = {"memory": 100_000, "urls": 20_000}.get(args.command, 50_000)
    return args


def main() -> None:
    args = arguments()
    commands = {
        "accepts": accepts,
        "replays": accepts,
        "operations": operations,
        "drain": drain,
        "urls": urls,
        "junk": junk,
        "memory": memory,
    }
    with tempfile.TemporaryDirectory(prefix="oncebox-bench-", dir=args.dir.resolve()) as folder:
        figures = commands[args.command](args, Path(folder))
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    print(json.dumps({"bench": args.command, "machine": machine} | figures))


if __name__ == "__main__":
    main()
