"""What is promised of operations, for each kind of them: one resource for each key, and no key that is stuck."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import outside
from perform.calls import CALLERS, MAKING, Caller, acted, ask, call, facts, made
from process.clocked import Clocked
from process.rig import Answer, Fresh, Server, at_once, clean_stop, parse, read_answer, reset, until
from process.servers import Serve

pytestmark = pytest.mark.process

DAY, BEGIN = 86_400, 1_796_000_000
PROMISED = f"""{MAKING}
import time
from pathlib import Path

@operation("block")
def block(request: Request) -> Reply:
    sink(request.key)
    time.sleep(float(request.query))
    return Reply(201, {{"key": request.key, "attempt": request.attempt}})

@operation("hold")
def hold(request: Request, db: Transaction) -> Reply:
    sink(request.key)
    time.sleep(float(request.query))
    db.execute("insert into made (key) values (?)", (request.key,))
    return Reply(201, {{"key": request.key, "attempt": request.attempt}})

@operation("waits")
async def waits(request: Request) -> Reply:
    sink(request.key)
    while not Path("end").exists():
        await asyncio.sleep(0.01)
    return Reply(201, {{"key": request.key}})

@operation("breaks")
async def breaks(request: Request, db: StagedTransaction) -> Reply:
    sink(request.key)
    if not Path("mended").exists():
        raise ConnectionError("the other side hung up after it was asked")
    return Reply(201, {{"key": request.key}})
"""


def hang_up_at(server: Server, path: str, moments: list[float]) -> None:
    """A client that resets its connection at each of these moments of a call, all at once, and then tries again."""

    def one(moment: float) -> tuple[str, Answer]:
        key = f"at-{moment:.2f}"
        line = server.connect()
        line.sendall(ask(path, key))
        select.select([line], [], [], moment)
        reset(line)
        return key, call(server, path, key)

    for key, answer in at_once([lambda moment=moment: one(moment) for moment in moments]):  # type: ignore[misc]
        assert (answer.status, json.loads(answer.body)) == (201, {"key": key, "attempt": 1}), answer
        assert acted(server)[key] == 1


def moments(count: int) -> list[float]:
    return [0.05 * step for step in range(count)]


@pytest.mark.parametrize(("path", "steps"), [("block?0.5", 12), ("hold?0.03", 12)])
def test_a_client_that_hangs_up_and_retries_acts_once(serve: Serve, path: str, steps: int) -> None:
    server = serve(handlers=PROMISED, config=CALLERS).start()
    hang_up_at(server, path, moments(steps))
    if path.startswith("hold"):
        assert made(server) == acted(server)
    clean_stop(server)


@pytest.mark.torture
@pytest.mark.parametrize("path", ["pay?3.0", "block?3.0", "hold?0.04"])
def test_a_client_that_hangs_up_at_each_of_65_moments_acts_once(serve: Serve, path: str) -> None:
    server = serve(handlers=PROMISED, config=CALLERS).start()
    hang_up_at(server, path, moments(65))
    clean_stop(server)


def killed(server: Server, path: str, rounds: int) -> None:
    """A server that is killed at different moments of its calls; each of them is then made again."""
    name = path.partition("?")[0]
    for number in range(rounds):
        callers = [Caller(server, f"{name}-{number}-{one}", path) for one in range(4)]
        select.select([], [], [], 0.04 + 0.011 * number)
        server.kill()
        for caller in callers:
            caller.stop()
        server.start()
        for caller in callers:
            for key, answer in caller.answered.items():
                assert facts(call(server, path, key)) == facts(answer)
            for key in caller.hanging:
                _made_again(server, path, key)
    assert set(acted(server).values()) <= {1} or name == "hold"
    assert server.rows("select count(*) from operations where state = 'running'") == [(0,)]


def _made_again(server: Server, path: str, key: str) -> None:
    begin = time.monotonic()
    answer = call(server, path, key)
    assert time.monotonic() - begin < 10
    if answer.status == 409:
        assert not path.startswith("hold"), "a transaction is never in doubt"
        assert answer.problem == "outcome-unknown"
    else:
        assert answer.status == 201
        assert facts(call(server, path, key)) == facts(answer)


def test_a_killed_server_acts_once_and_holds_no_key(serve: Serve) -> None:
    server = serve(handlers=PROMISED, config=CALLERS).start()
    killed(server, "block?0.05", rounds=3)
    assert set(made(server).values()) <= {1}
    clean_stop(server)


@pytest.mark.torture
@pytest.mark.parametrize("path", ["block?0.05", "hold?0.02"])
def test_a_server_that_is_killed_at_20_moments_acts_once(serve: Serve, path: str) -> None:
    server = serve(handlers=PROMISED, config=CALLERS).start()
    killed(server, path, rounds=20)
    assert set(made(server).values()) <= {1}
    clean_stop(server)


def test_what_raises_after_its_outside_call_is_unknown_until_a_person_says_that_it_is_free(serve: Serve) -> None:
    server = serve(handlers=PROMISED, config=CALLERS).start()
    assert call(server, "breaks", "k").problem == "outcome-unknown"
    assert call(server, "breaks", "k").status == 409
    clean_stop(server)
    server.start()
    assert call(server, "breaks", "k").status == 409
    assert acted(server)["k"] == 1
    assert "1 unknown" in outside(server.folder, "stats").stdout
    (server.folder / "mended").touch()
    done = outside(server.folder, "operations", "resolve", "acme", "k", "--as", "free")
    assert done.returncode == 0, done.stderr
    first = call(server, "breaks", "k")
    assert (first.status, first.replayed, acted(server)["k"]) == (201, False, 2)
    assert facts(call(server, "breaks", "k")) == facts(first)


def test_what_is_unknown_and_said_to_be_done_answers_as_it_was_said_ever_after(serve: Serve) -> None:
    server = serve(handlers=PROMISED, config=CALLERS).start()
    assert call(server, "breaks", "k").problem == "outcome-unknown"
    reply = server.folder / "reply.json"
    reply.write_text('{"status": 201, "headers": {"Location": "/paid/7"}, "body": {"id": 7}}')
    done = outside(server.folder, "operations", "resolve", "acme", "k", "--as", "done", "--reply", str(reply))
    assert done.returncode == 0, done.stderr
    for _ in range(2):
        answer = call(server, "breaks", "k")
        assert (answer.status, answer.headers["location"], answer.body) == (201, "/paid/7", b'{"id": 7}')
        assert answer.replayed
        clean_stop(server)
        server.start()
    assert call(server, "breaks", "k", b"[]").status == 422
    assert acted(server)["k"] == 1


def test_no_more_than_256_wait_in_all_and_the_others_are_told_to_come_again(serve: Serve) -> None:
    server = serve(handlers=PROMISED, config=CALLERS).start()
    keys = [f"k{number}" for number in range(12)]
    lines = [server.connect() for _ in range(12 * 41)]
    try:
        for key, line in zip(keys, lines, strict=False):
            line.sendall(ask("waits", key))
        until(lambda: len(acted(server)) == 12, 5)
        for number, line in enumerate(lines[12:]):
            line.sendall(ask("waits", keys[number % 12]))
        until(lambda: len(select.select(lines, [], [], 0)[0]) >= len(lines) - 12 - 256, 8)
        (server.folder / "end").touch()
        answers = [parse(read_answer(line)) for line in lines]
    finally:
        for line in lines:
            line.close()
    assert sum(answer.replayed for answer in answers) == 256
    assert sum(answer.status == 201 for answer in answers) == 12 + 256
    assert {answer.problem for answer in answers if answer.status != 201} == {"in-progress"}
    assert set(acted(server).values()) == {1}


def resident(server: Server) -> int:
    """The memory of a server, in MiB."""
    (line,) = [one for one in Path(f"/proc/{server.pid}/status").read_text().splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) >> 10


@pytest.mark.alone
def test_twins_that_wait_hold_no_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is free goes back at once, so that what is resident is what is held: else glibc keeps some of it at times.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
    server = Fresh(tmp_path / "inbox", handlers=PROMISED, config=CALLERS)
    size = 4 << 20
    large = ask("waits", "k", b"x" * size).replace(b"application/json", b"text/plain", 1)
    lines: list[socket.socket] = []
    try:
        server.start()
        lines += [server.connect() for _ in range(33)]
        lines[0].sendall(large)
        until(lambda: acted(server)["k"] == 1, 5)
        before = resident(server)
        for line in lines[1:]:
            line.sendall(large)
        until(lambda: parse(server.raw(large, timeout=0.5) or b"HTTP/1.1 0 \r\n\r\n").status == 409, 8, "all wait")
        assert resident(server) - before < 32 * size // 4 >> 20
        (server.folder / "end").touch()
        answers = [parse(read_answer(line)) for line in lines]
        assert {answer.status for answer in answers} == {201}
        assert acted(server)["k"] == 1
        clean_stop(server)
    finally:
        for line in lines:
            line.close()
        server.end()


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[Clocked]:
    server = Clocked(tmp_path / "inbox", at=BEGIN, handlers=PROMISED, config=CALLERS)
    yield server
    server.end()


@pytest.mark.parametrize(
    ("path", "seconds", "most"),
    [("hold?0.01", 30 * DAY, 1), ("hold?0.01", 30 * DAY + 1, 2), ("pay?0.01", 30 * DAY + 1, 2)],
)
def test_20_twins_at_the_moment_of_expiry_make_at_most_one_more(
    clocked: Clocked, path: str, seconds: int, most: int
) -> None:
    clocked.start()
    first = call(clocked, path, "k")
    assert clocked.stop() == 0
    clocked.set_clock(BEGIN + seconds)
    clocked.start()
    answers = at_once([lambda: call(clocked, path, "k") for _ in range(20)])
    assert {answer.status for answer in answers} == {201}
    assert len({json.dumps(facts(answer)) for answer in answers}) == 1
    assert acted(clocked)["k"] == made(clocked)["k"] == most
    assert sum(answer.replayed for answer in answers) == (20 if most == 1 else 19)
    assert facts(first) in [facts(answer) for answer in answers]


def test_a_key_that_expires_while_20_twins_come_in_makes_at_most_one_more(clocked: Clocked) -> None:
    path = "pay?0.01"
    clocked.start()
    call(clocked, path, "k")
    assert clocked.stop() == 0
    clocked.set_clock(BEGIN + 30 * DAY)
    clocked.start()
    jobs = [lambda: call(clocked, path, "k") for _ in range(20)]
    answers = at_once([*jobs[:10], lambda: clocked.set_clock(BEGIN + 30 * DAY + 1), *jobs[10:]])
    assert {answer.status for answer in answers if answer is not None} == {201}
    assert acted(clocked)["k"] == made(clocked)["k"] <= 2
    assert call(clocked, path, "k").replayed
