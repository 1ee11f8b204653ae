"""Twins: many connections send the same new id at the same moment."""

from __future__ import annotations

from threading import Barrier

from process.rig import Answer, Client, Server, at_once

TWINS = 16
COUNTING = """
from oncebox import Event, Transaction, on, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists effects (id text not null) strict")

@on("demo")
def count(event: Event, db: Transaction) -> None:
    db.execute("insert into effects values (?)", (event.id,))
"""


def twin_rounds(server: Server, *, rounds: int, restart_every: int) -> None:
    """In each round 16 twins; after some of them a kill or a stop, and the same twins again."""
    answers: dict[str, bytes] = {}
    for number in range(rounds):
        id = f"round-{number}"
        answers[id] = _one_body(_release(server, id), fresh=1)
        if number % restart_every == restart_every - 1:
            _restart(server, kill=number % 2 == 0)
            assert _one_body(_release(server, id), fresh=0) == answers[id]
    server.until_quiet(30)
    assert server.rows("select id, count(*) from effects group by 1 order by 1") == [(id, 1) for id in sorted(answers)]
    assert server.rows("select id from v_events order by 1") == [(id,) for id in sorted(answers)]
    assert all(server.post(id).body == body for id, body in answers.items())


def _release(server: Server, id: str) -> list[Answer]:
    barrier = Barrier(TWINS)

    def send() -> Answer:
        with Client(server) as client:
            client.request("GET", "/healthz")  # connected before the barrier
            barrier.wait(20)
            return client.post(id)

    return at_once([send] * TWINS)


def _one_body(answers: list[Answer], *, fresh: int) -> bytes:
    assert [answer.status for answer in answers] == [202] * TWINS
    assert sum(not answer.replayed for answer in answers) == fresh
    (body,) = {answer.body for answer in answers}
    return body


def _restart(server: Server, *, kill: bool) -> None:
    if kill:
        server.kill()
    else:
        assert server.stop() == 0
    server.start()
