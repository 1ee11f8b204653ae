"""Stops: SIGTERM under load, and what must be true of what was in hand."""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from threading import Thread

from process.rig import Client, Server, clean_stop, until

WAITING = """
import asyncio
from oncebox import Event, on

@on("demo", concurrency=8)
async def wait(event: Event) -> None:
    with open("begun.txt", "a") as begun:
        begun.write(f"{event.id} {event.attempt}\\n")
    await asyncio.sleep(SECONDS)
    with open("ended.txt", "a") as ended:
        ended.write(event.id + "\\n")
"""


def waiting(seconds: float) -> str:
    """A handler module whose handler takes so long."""
    return WAITING.replace("SECONDS", str(seconds))


def stop_under_load(server: Server, name: str, *, after: int, within: float) -> None:
    """Send, stop after so many receipts; what ran is finished and counted once, the rest waits uncounted."""
    told: list[str] = []
    sender = Thread(target=_send_until_cut_off, args=(server, name, told))
    sender.start()
    until(lambda: lines(server.folder / "begun.txt") and len(told) >= after, 20)
    clean_stop(server, within)
    sender.join()
    stored = [id for (id,) in server.rows("select id from v_events order by seq")]
    mine = [id for id in stored if id.startswith(f"{name}-")]
    assert set(told) <= set(mine)
    assert len(mine) - len(told) <= 1  # one more may have been stored when its answer was cut off
    begun, ended = lines(server.folder / "begun.txt"), lines(server.folder / "ended.txt")
    assert sorted(line.split()[0] for line in begun) == sorted(ended)
    assert len(ended) == len(set(ended))
    done = server.rows("select e.id, d.attempts from v_deliveries d join v_events e using (seq) where d.state = 'done'")
    assert sorted(done) == sorted((id, 1) for id in ended)
    assert server.rows(
        "select count(*) from v_deliveries where state <> 'done' and (attempts > 0 or state <> 'pending')"
    ) == [(0,)]
    assert server.rows("select count(*) from attempts") == [(0,)]


def _send_until_cut_off(server: Server, name: str, told: list[str]) -> None:
    with Client(server) as client:
        for number in range(100_000):
            try:
                answer = client.post(f"{name}-{number}")
            except (OSError, http.client.HTTPException):
                return
            if answer.status != 202:
                assert answer.status == 503
                assert "retry-after" in answer.headers
                return
            told.append(f"{name}-{number}")
            time.sleep(0.002)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
