"""Command: a program as a target. It gets the body on its standard input and says by its exit code how it went."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

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
        # The time is kept here, since the end of a whole process group takes its own; the drain's is a safety net.
        self.timeout = timeout + mercy + 1
        self._seconds = timeout
        self._mercy = mercy
        self._command = tuple(command)
        self._folder = folder
        # Our own settings, a token among them, are no business of the command's.
        self._environ = {name: value for name, value in environ.items() if not name.startswith("ONCEBOX_")}

    async def deliver(self, claimed: Claimed) -> Verdict:
        """Run it to its end, or until its time is up. Raises only CancelledError, with the program ended."""
        loop = asyncio.get_running_loop()
        try:
            transport, run = await loop.subprocess_exec(
                lambda: Run(loop.create_future),
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=self._folder,
                env=self._environ | about(claimed),
                start_new_session=True,
                close_fds=True,
            )
        except (OSError, ValueError) as error:
            why = f"{self._command[0]} cannot be started: {getattr(error, 'strerror', None) or error}"
            return Verdict(outcome="unreachable", error=bounded(why), reason=type(error).__name__, down=True)
        try:
            return await self._follow(transport, run, claimed.event.raw)
        finally:
            transport.close()

    async def _follow(self, transport: asyncio.SubprocessTransport, run: Run, body: bytes) -> Verdict:
        group = transport.get_pid()
        stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
        stdin.write(body)
        stdin.close()
        try:
            ended = await _within(run.exited, self._seconds)
            if not ended:
                await _end(group, run, self._mercy)
                return of_timeout(self._seconds)
        except asyncio.CancelledError:
            await _end(group, run, LAST_MOMENT)
            raise
        await _within(run.silent, LAST_WORDS)
        return of_exit(transport.get_returncode() or 0, bytes(run.tail))


class Run(asyncio.SubprocessProtocol):
    """What is seen of a running program: the end of what it says, its exit, and the end of its output."""

    def __init__(self, future: Callable[[], asyncio.Future[None]]) -> None:
        self.exited = future()
        self.silent = future()
        self.tail = bytearray()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        self.tail += data if isinstance(data, bytes) else data.encode()
        del self.tail[:-TAIL_BYTES]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self.silent.done():
            self.silent.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)


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


async def _within(future: asyncio.Future[None], seconds: float) -> bool:
    done, _ = await asyncio.wait({future}, timeout=seconds)
    return bool(done)


async def _end(group: int, run: Run, mercy: float) -> None:
    """End the whole process group: ask, wait a moment, then kill what is left of it."""
    try:
        _kill(group, signal.SIGTERM)
        await _within(run.exited, mercy)
    finally:
        _kill(group, signal.SIGKILL)
    await _within(run.exited, LAST_MOMENT)


def _kill(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
