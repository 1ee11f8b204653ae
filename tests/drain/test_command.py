"""Command targets: real programs, on both event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from drain.delivering import QUICK, claimed, delivering
from oncebox.drain.command import CommandTarget, of_exit
from oncebox.drain.http import Client
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.target import Target
from oncebox.drain.verdict import OK, Verdict, of_timeout

Runs = Callable[[Coroutine[Any, Any, Any]], Any]
ENVIRON = {"PATH": os.environ["PATH"], "ONCEBOX_TOKEN": "of the server's", "HOME": "/nowhere"}


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runs:
    return asyncio.run if request.param == "asyncio" else uvloop.run


def target(folder: Path, *command: str, **more: Any) -> CommandTarget:
    return CommandTarget("tool", command, folder=folder, environ=ENVIRON, **more)


def shell(folder: Path, script: str, **more: Any) -> CommandTarget:
    return target(folder, "sh", "-c", script, **more)


async def deliver(one: CommandTarget, **event: Any) -> Verdict:
    with anyio.fail_after(20):
        verdict = await one.deliver(claimed(**event))
    await asyncio.sleep(0)
    return verdict


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def dies(pid: int) -> bool:
    until = time.monotonic() + 5
    while lives(pid) and time.monotonic() < until:
        os.sched_yield()
    return not lives(pid)


def test_the_body_comes_on_standard_input_and_the_rest_in_the_environment(run: Runs, tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    one = shell(tmp_path, "cat > body; env | grep ONCEBOX_ | sort > facts")
    assert run(deliver(one, body=body)).outcome == "ok"
    assert (tmp_path / "body").read_bytes() == body
    assert (tmp_path / "facts").read_text().splitlines() == [
        "ONCEBOX_ATTEMPT=2",
        "ONCEBOX_CONTENT_ENCODING=",
        "ONCEBOX_CONTENT_TYPE=application/json",
        "ONCEBOX_ID=evt_1",
        "ONCEBOX_IDEMPOTENCY_KEY=edge:shop:evt_1",
        "ONCEBOX_RECEIVED_AT=2026-12-02T00:00:00.000000Z",
        "ONCEBOX_RUN=1",
        "ONCEBOX_SEQ=7",
        "ONCEBOX_SOURCE=shop",
        "ONCEBOX_TARGET=tool",
        "ONCEBOX_TYPE=paid",
    ]


def test_arguments_are_never_read_by_a_shell(run: Runs, tmp_path: Path) -> None:
    one = target(tmp_path, "touch", "a b; touch c", "$HOME")
    assert run(deliver(one)).outcome == "ok"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["$HOME", "a b; touch c"]


def test_an_id_cannot_be_a_command(run: Runs, tmp_path: Path) -> None:
    one = shell(tmp_path, 'printf %s "$ONCEBOX_ID$ONCEBOX_TYPE" > id')
    run(deliver(one, id="$(touch x)\\`y`", type="a\0b"))
    assert (tmp_path / "id").read_text() == "$(touch x)\\`y`a%00b"
    assert not (tmp_path / "x").exists()


def test_a_program_beside_the_configuration_is_found(run: Runs, tmp_path: Path) -> None:
    script = tmp_path / "deploy.sh"
    script.write_text("#!/bin/sh\ntouch done\n")
    script.chmod(0o755)
    assert run(deliver(target(tmp_path, "./deploy.sh"))).outcome == "ok"
    assert (tmp_path / "done").exists()


def test_the_end_of_what_it_said_is_kept(run: Runs, tmp_path: Path) -> None:
    one = shell(tmp_path, "seq 1 200000; echo no such branch >&2; exit 3")
    verdict = run(deliver(one))
    assert (verdict.outcome, verdict.down) == ("error", False)
    assert str(verdict.error).startswith("exit code 3\n\n…")
    assert str(verdict.error).endswith("no such branch")
    assert len(str(verdict.error)) < 600


def test_a_program_that_dies_of_a_signal_says_which(run: Runs, tmp_path: Path) -> None:
    assert run(deliver(shell(tmp_path, "kill -SEGV $$"))).error == "ended by SIGSEGV"
    assert of_exit(-99, b"").error == "ended by signal 99"


def test_a_program_that_reads_nothing_may_be_done_all_the_same(run: Runs, tmp_path: Path) -> None:
    assert run(deliver(target(tmp_path, "true"), body=b"x" * 3_000_000)).outcome == "ok"


@pytest.mark.parametrize("command", ["./nothing-of-that-name", "/etc/passwd"])
def test_what_cannot_be_started_is_unreachable(run: Runs, tmp_path: Path, command: str) -> None:
    verdict = run(deliver(target(tmp_path, command)))
    assert (verdict.outcome, verdict.down) == ("unreachable", True)
    assert str(verdict.error).startswith(f"{command} cannot be started: ")


def test_at_the_timeout_the_whole_process_group_ends(run: Runs, tmp_path: Path) -> None:
    script = "trap '' TERM; sh -c 'trap \"\" TERM; sleep 60' & echo $! > child; sleep 60"
    began = time.monotonic()
    verdict = run(deliver(shell(tmp_path, script, timeout=0.3, mercy=0.2)))
    assert (verdict.outcome, verdict.down) == ("timeout", True)
    assert time.monotonic() - began < 5
    assert dies(int((tmp_path / "child").read_text()))


def test_a_program_gets_a_moment_to_clean_up_at_its_timeout(run: Runs, tmp_path: Path) -> None:
    one = shell(tmp_path, "trap 'touch cleaned; exit 0' TERM; touch up; while :; do sleep 0.05; done", timeout=0.3)
    assert run(deliver(one)).outcome == "timeout"
    assert (tmp_path / "cleaned").exists()


def test_a_grandchild_that_holds_the_pipes_does_not_hold_the_slot(run: Runs, tmp_path: Path) -> None:
    began = time.monotonic()
    verdict = run(deliver(shell(tmp_path, "sleep 60 & echo $! > child; echo started; exit 1", timeout=10.0)))
    assert time.monotonic() - began < 5
    assert verdict.error == "exit code 1\n\nstarted"
    pid = int((tmp_path / "child").read_text())
    assert lives(pid)
    os.kill(pid, 9)


def test_no_descriptor_is_inherited(run: Runs, tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        run(
            deliver(
                target(
                    tmp_path, sys.executable, "-c", "import os; open('fds','w').write(str(os.listdir('/proc/self/fd')))"
                )
            )
        )
    found = {int(fd) for fd in eval((tmp_path / "fds").read_text())}
    assert found <= {0, 1, 2, 3, 4}


def test_a_stop_ends_the_program(run: Runs, tmp_path: Path) -> None:
    async def stopped() -> None:
        task = asyncio.create_task(shell(tmp_path, "echo $$ > pid; exec sleep 60").deliver(claimed()))
        with anyio.fail_after(10):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(stopped())
    assert dies(int((tmp_path / "pid").read_text()))


def test_a_stop_after_the_exit_changes_nothing_of_how_it_went(run: Runs, tmp_path: Path) -> None:
    async def stopped(script: str) -> Verdict:
        task = asyncio.create_task(shell(tmp_path, script, timeout=5.0).deliver(claimed()))
        with anyio.fail_after(10):
            while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():  # noqa: ASYNC110  # another process writes it
                await asyncio.sleep(0)
        shell_pid = int((tmp_path / "child").read_text())
        while lives(shell_pid):  # noqa: ASYNC110  # it is ended by itself
            await asyncio.sleep(0)
        task.cancel()
        return await task

    # A child that holds the output open keeps the last words waited for.
    begun = "sleep 2 & echo $$ > child.new; mv child.new child; exit"
    assert run(stopped(f"{begun} 0")) == OK
    (tmp_path / "child").unlink()
    assert run(stopped(f"{begun} 3")).error == "exit code 3"


def test_a_stop_after_the_time_was_up_leaves_it_a_timeout(run: Runs, tmp_path: Path) -> None:
    async def stopped() -> Verdict:
        one = shell(tmp_path, "trap 'touch asked' TERM; while :; do sleep 0.05; done", timeout=0.3)
        task = asyncio.create_task(one.deliver(claimed()))
        with anyio.fail_after(10):
            while not (tmp_path / "asked").exists():  # noqa: ASYNC110  # another process makes it
                await asyncio.sleep(0.01)
        task.cancel()
        return await task

    assert run(stopped()) == of_timeout(0.3)


def test_a_stop_at_any_moment_of_the_start_leaves_no_pipe_open(run: Runs, tmp_path: Path) -> None:
    async def stopped(turns: int) -> None:
        task = asyncio.create_task(shell(tmp_path, "exec sleep 60").deliver(claimed()))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for turns in range(8):
            run(stopped(turns))
        gc.collect()
    assert [str(one.message) for one in warned] == []


@pytest.mark.anyio
async def test_events_go_through_a_program_with_its_retries(tmp_path: Path) -> None:
    script = 'cat >/dev/null; echo "$ONCEBOX_ID" >> log; test "$(grep -c "^$ONCEBOX_ID$" log)" -ge 3'

    def make(_client: Client) -> list[Target]:
        return [shell(tmp_path, script, retry=QUICK, concurrency=3)]

    async with delivering(tmp_path / "a.db", make) as inbox:
        await inbox.receive(*(f"e{n}" for n in range(9)))
        await inbox.idle()
        assert {row[1:] for row in await inbox.states()} == {("done", "ok", 2)}
    assert sorted((tmp_path / "log").read_text().split()) == sorted(f"e{n}" for n in range(9) for _ in range(3))


@pytest.mark.anyio
async def test_a_program_that_is_missing_loses_nothing_until_it_is_there(tmp_path: Path) -> None:
    def make(_client: Client) -> list[Target]:
        return [target(tmp_path, "./later", retry=RetryPolicy(attempts=1, base=0.005, ceiling=0.02))]

    async with delivering(tmp_path / "a.db", make) as inbox:
        await inbox.receive(*(f"e{n}" for n in range(5)))
        await inbox.until(lambda: inbox.drain.down() == ["tool"])
        script = tmp_path / "written"
        script.write_text("#!/bin/sh\ncat >/dev/null\n")
        script.chmod(0o755)
        script.rename(tmp_path / "later")
        await inbox.idle()
        assert {row[1:] for row in await inbox.states()} == {("done", "ok", 0)}
