"""Outbound: what leaves through a URL target, against the HTTP client's own loop."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from rig import SCRIPTS, WAITING, Figures, Inbox, free_port, load, started

URL_SLOTS = 16
SIGNING = "whsec_b25jZWJveC1iZW5jaC1vZi1uby12YWx1ZQ=="


def urls(args: argparse.Namespace, folder: Path) -> Figures:
    """A backlog through a URL target, and the same bytes through the HTTP client's own loop, in alternation."""
    receiver = free_port()
    pairs = []
    with started([sys.executable, str(SCRIPTS / "receiver.py"), str(receiver)], receiver, folder / "receiver.log"):
        for pair in range(args.pairs):
            (folder / str(pair)).mkdir()
            pairs.append((delivered(args, folder / str(pair), receiver), posted(args, receiver)))
            ours, client = pairs[-1]
            print(f"{ours:.0f}/s against {client:.0f}/s: {ours / client:.2f}", flush=True)
    return {
        "delivered_per_s": round(median(ours for ours, _ in pairs)),
        "client_per_s": round(median(client for _, client in pairs)),
        "ratio": round(median(ours / client for ours, client in pairs), 3),
    }


def delivered(args: argparse.Namespace, folder: Path, receiver: int) -> float:
    """Deliveries a second to a receiver, by the receiver's own clock; each of a backlog arrives once."""
    inbox = Inbox(folder)
    inbox.write(WAITING)
    with inbox.serve():
        filled = load(inbox.port, run="fill00", connections=64, seconds=600, warm_up=0, requests=args.events)["first"]
    inbox.write(
        more=f'[targets.insert]\nurl = "http://127.0.0.1:{receiver}/hook"\nsecret = "plain:{SIGNING}"\n'
        f'concurrency = {URL_SLOTS}\n[[routes]]\nsource = "bench"\nto = "insert"\n'
    )
    with inbox.serve():
        return received(receiver, filled)


def posted(args: argparse.Namespace, receiver: int) -> float:
    """Posts a second of the client alone."""
    headers = dict.fromkeys(("webhook-id", "webhook-signature", "Idempotency-Key", "Oncebox-Id"), "x" * 44)
    headers |= dict.fromkeys(("webhook-timestamp", "Oncebox-Attempt", "Oncebox-Type"), "1796204523")
    plan = {
        "url": f"http://127.0.0.1:{receiver}/hook",
        "headers": headers | {"Content-Type": "application/json"},
        "bytes": 1024,
        "requests": args.events,
        "connections": URL_SLOTS,
    }
    with subprocess.Popen([sys.executable, str(SCRIPTS / "posting.py"), json.dumps(plan)]) as client:
        rate = received(receiver, args.events)
    if client.returncode:
        raise SystemExit(f"the client's loop ended with {client.returncode}")
    return rate


def received(receiver: int, total: int) -> float:
    """Wait until a receiver has got so many, and no more; how many a second came in between."""
    count, first, last = 0, 0.0, 0.0
    deadline = time.monotonic() + 120
    while count < total and time.monotonic() < deadline:
        time.sleep(0.25)
        with urlopen(f"http://127.0.0.1:{receiver}/", timeout=10) as answer:
            got = [float(one) for one in answer.read().split()]
        count, first, last = count + int(got[0]), first or got[1], got[2] or last
    if count != total:
        raise SystemExit(f"{count} of {total} arrived")
    return count / (last - first)
