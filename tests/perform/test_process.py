"""Operations of a real server process: one resource for each key, whatever happens to client, server and connection."""

from __future__ import annotations

import json
import signal
import time
from threading import Thread

import pytest

from perform.calls import (
    CALLERS,
    MAKING,
    SECRET,
    acted,
    ask,
    call,
    crowd,
    facts,
    hang_ups,
    kills,
    made,
    write_config,
)
from process.rig import Answer, clean_stop, until
from process.servers import Serve

pytestmark = pytest.mark.process


def test_a_replay_after_a_restart_equals_the_first_in_status_headers_and_body(serve: Serve) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    first = {path: call(server, path, path) for path in ("quick", "large", "pay?0")}
    assert {path: answer.status for path, answer in first.items()} == {"quick": 201, "large": 200, "pay?0": 201}
    assert first["quick"].headers["location"] == "/made/1"
    assert len(first["large"].body) == 8 << 20
    assert not any(answer.replayed for answer in first.values())
    server.kill()
    server.start()
    for path, answer in first.items():
        again = call(server, path, path)
        assert again.replayed
        assert facts(again) == facts(answer)
    clean_stop(server)


def test_a_client_that_resets_its_connection_and_retries_gets_one_resource(serve: Serve) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    hang_ups(server, 0.5, [0.05 * step for step in range(12)])


@pytest.mark.torture
def test_a_client_that_resets_at_any_moment_of_three_seconds_gets_one_resource(serve: Serve) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    hang_ups(server, 3.0, [0.05 * step for step in range(65)])


@pytest.mark.parametrize("path", ["quick", "pay?0.05"])
def test_a_killed_server_never_makes_two_resources_nor_holds_a_key(serve: Serve, path: str) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    kills(server, path, rounds=3)
    clean_stop(server)


@pytest.mark.torture
@pytest.mark.parametrize("path", ["quick", "pay?0.05", "again?0.05"])
def test_a_server_that_is_killed_at_20_moments_never_makes_two_resources(serve: Serve, path: str) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    kills(server, path, rounds=20)
    clean_stop(server)


def test_500_twins_of_a_slow_call_get_one_reply_or_are_told_to_come_again(serve: Serve) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    answers = crowd(server, 500)
    replies = [answer for answer in answers if answer.status == 201]
    assert len({answer.body for answer in replies}) == 1
    assert len(replies) == 33
    assert sum(answer.replayed for answer in replies) == 32
    assert {answer.problem for answer in answers if answer.status != 201} == {"in-progress"}
    assert acted(server)["crowd"] == made(server)["crowd"] == 1


def test_a_stop_waits_for_a_call_that_runs(serve: Serve) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    got: list[Answer] = []
    thread = Thread(target=lambda: got.append(call(server, "pay?0.5", "k")))
    thread.start()
    until(lambda: acted(server)["k"], 5)
    clean_stop(server)
    thread.join()
    assert got[0].status == 201
    server.start()
    assert call(server, "pay?0.5", "k").replayed


def test_a_call_that_outlasts_the_stop_is_unknown(serve: Serve) -> None:
    server = serve(handlers=MAKING, config=CALLERS, server='grace = "1s"').start()
    line = server.connect()
    line.sendall(ask("pay?30", "k"))
    until(lambda: acted(server)["k"], 5)
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 8
    line.close()
    server.start()
    answer = call(server, "pay?30", "k")
    assert (answer.status, answer.problem) == (409, "outcome-unknown")
    assert made(server) == {}


def test_secrets_of_callers_rotate_without_a_restart(serve: Serve) -> None:
    server = serve(handlers=MAKING, config=CALLERS).start()
    first = call(server, "quick", "k")
    write_config(server, f"plain:{SECRET}", "plain:another")
    server.signal(signal.SIGHUP)
    until(lambda: call(server, "quick", "k").status == 401, 5)
    write_config(server, "plain:another", f"plain:{SECRET}")
    server.signal(signal.SIGHUP)
    until(lambda: call(server, "quick", "k").status == 201, 5)
    assert facts(call(server, "quick", "k")) == facts(first)
    assert json.loads(first.body) == {"id": 1}
