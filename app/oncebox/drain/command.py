"""Command: a program as a target. It gets the body on its standard input and says by its exit code how it went."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from oncebox.deadline import within
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.verdict import OK, Verdict, bounded, of_timeout
from oncebox.drain.webhook import shown
from oncebox.model import Claimed, moment

# What a program gets to clean up between SIGTERM and SIGKILL: after its time was up, and at a stop.
MERCY = 2.0
LAST_MOMENT = 0.5
# Output may still be on its way when the exit is already known. Whoever else holds the pipe is not waited for.
LAST_WORDS = 0.05
TAIL_BYTES = 2048

_NUL = str.maketrans({"\0": "%00"})


class CommandTarget:
    """A program that is started once for each delivery, in a process group of its own."""

    in_process = False
    stoppable = True
    keeps_time = True

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        environ: Mapping[str, str],
        timeout: float = 10.0,
        concurrency: int = 4,
        rate: float | None = None,
        retry: RetryPolicy | None = None,
        mercy: float = MERCY,
    ) -> None:
        self.name = name
        self.concurrency = concurrency
        self.rate = rate
        self.retry = retry or RetryPolicy()
        self.timeout = timeout
        self._mercy = mercy
        self._command = tuple(command)
        self._folder = folder
        # Our own settings, a token among them, are no business of the command's.
        self._environ = {name: value for name, value in environ.items() if not name.startswith("ONCEBOX_")}

    async def deliver(self, claimed: Claimed) -> Verdict:
        """Run it to its end, or until its time is up. Raises only CancelledError, with the program ended, and not once
        its end is known."""
        try:
            # Not the loop's own way: uvloop's lets a program inherit what others have made inheritable.
            process = subprocess.Popen(  # noqa: ASYNC220, S603  no shell; it returns when the program has started, which is at once
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                cwd=self._folder,
                env=self._environ | about(claimed),
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:
            why = f"{self._command[0]} cannot be started: {getattr(error, 'strerror', None) or error}"
            return Verdict(outcome="unreachable", error=bounded(why), reason=type(error).__name__, down=True)
        run = Run(process)
        try:
            return await self._follow(run, claimed.event.raw)
        finally:
            run.close()

    async def _follow(self, run: Run, body: bytes) -> Verdict:
        # A stop does not cut this short: it takes no time, and a pipe that is half connected is closed by nobody.
        talking = asyncio.ensure_future(run.talk(body))
        late = False
        try:
            await asyncio.shield(talking)
            late = not await within(run.exited, self.timeout)
            if late:
                await run.end(self._mercy)
        except asyncio.CancelledError:
            known = late or run.has_exited
            await run.end(LAST_MOMENT)
            await asyncio.wait({talking})
            if not known:
                raise
        if late:
            return of_timeout(self.timeout)
        with suppress(asyncio.CancelledError):  # the exit says how it went, whatever it said last
            await within(run.silent, LAST_WORDS)
        return of_exit(await run.exited, bytes(run.tail))


class Input(asyncio.BaseProtocol):
    """The way into a program, which either side may close first."""

    lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Run(asyncio.Protocol):
    """A running program: the end of what it says, its exit, and the end of its output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()
        self.tail = bytearray()
        self._process = process
        self._input = Input()
        self._stdin: asyncio.WriteTransport | None = None
        self._stdout: asyncio.ReadTransport | None = None
        threading.Thread(target=self._wait, name=f"command {process.pid}", daemon=True).start()

    @property
    def has_exited(self) -> bool:
        """It has, be it that nobody has asked for its exit code yet."""
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    async def talk(self, body: bytes) -> None:
        """Give it the body, and begin to listen."""
        self._stdin, _ = await self._loop.connect_write_pipe(lambda: self._input, self._process.stdin)
        self._stdin.write(body)
        self._stdin.close()
        self._stdout, _ = await self._loop.connect_read_pipe(lambda: self, self._process.stdout)

    async def end(self, mercy: float) -> None:
        """End the whole process group: ask, wait a moment, then kill what is left of it."""
        try:
            self._signal(signal.SIGTERM)
            await within(self.exited, mercy)
        finally:
            self._signal(signal.SIGKILL)
        await within(self.exited, LAST_MOMENT)

    def close(self) -> None:
        """Neither talk nor listen any more."""
        if self._stdin is not None and not self._input.lost:
            self._stdin.abort()  # what was not read by now is read by nobody
        if self._stdout is not None:
            self._stdout.close()

    def data_received(self, data: bytes) -> None:
        self.tail += data
        del self.tail[:-TAIL_BYTES]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.silent.done():
            self.silent.set_result(None)

    def _wait(self) -> None:
        code = self._process.wait()
        with suppress(RuntimeError):  # the loop may have ended meanwhile
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def about(claimed: Claimed) -> dict[str, str]:
    """What a command is told of its event, as environment variables."""
    event = claimed.event
    facts = {
        "ID": event.id,
        "SOURCE": event.source,
        "TYPE": event.type or "",
        "SEQ": str(event.seq),
        "TARGET": claimed.target,
        "RUN": str(claimed.run),
        "ATTEMPT": str(claimed.attempt),
        "RECEIVED_AT": moment(round(event.received_at.timestamp() * 1_000_000)),
        "CONTENT_TYPE": event.content_type,
        "CONTENT_ENCODING": claimed.encoding or "",
        "IDEMPOTENCY_KEY": event.idempotency_key,
    }
    return {f"ONCEBOX_{name}": value.translate(_NUL) for name, value in facts.items()}


def of_exit(code: int, tail: bytes) -> Verdict:
    """The verdict on a program that has ended; negative codes are signals, as in Python."""
    if code == 0:
        return OK
    what = f"exit code {code}" if code > 0 else f"ended by {_signal(-code)}"
    said = shown(tail, "utf-8", last=True)
    return Verdict(outcome="error", error=bounded(f"{what}\n\n{said}" if said else what), reason=what)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
