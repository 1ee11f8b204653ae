"""Nursery: one process that has read what a server reads, and forks the processes that tests start.

Most of the time of a start goes into reading Litestar, uvicorn and the rest. Here that is done once; in all else each
is what `python -W default -c CODE ARGUMENTS` would be: a process of its own with its own folder, environment, signals,
exit code and end. This file run as a program is the nursery.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

APP = Path(__file__).resolve().parents[2] / "app"
# What a server reads when it starts.
READ = "import oncebox.serve, oncebox.cli.serve, uvicorn.protocols.http.httptools_impl, uvloop, aiosqlite"


class Born:
    """A process that the nursery has forked; used as a Popen is."""

    def __init__(self, line: socket.socket, pid: int, args: object) -> None:
        self.args, self.pid = args, pid
        self.returncode: int | None = None
        self._line = line

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                told = self._line.recv(16)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(repr(self.args), timeout or 0) from None
            assert told, f"who watched process {self.pid} is gone"
            self.returncode = int(told)
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to a process that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The other side of the program below. It ends when it is closed, or with this process."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._turn = threading.Lock()
        command = [sys.executable, "-W", "default", __file__, str(theirs.fileno())]
        environ = {**os.environ, "PYTHONPATH": str(APP), "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(command, env=environ, pass_fds=[theirs.fileno()])
        theirs.close()

    def bear(self, code: str, arguments: tuple[str, ...], folder: Path, environ: dict[str, str], log: Any) -> Born:
        """Run this code in a folder; all that it writes to standard error goes to `log`."""
        asked = {"code": code, "arguments": arguments, "folder": str(folder), "environ": environ}
        line, other = socket.socketpair()
        with other, self._turn:
            socket.send_fds(self._ours, [b"!"], [other.fileno(), log.fileno()])
            line.sendall(json.dumps(asked).encode() + b"\n")
            with line.makefile("rb", buffering=0) as file:  # unbuffered: what comes later is for `wait`
                told = file.readline()
        assert told, "the nursery has ended"
        return Born(line, int(told), (code, *arguments))

    def close(self) -> None:
        self._ours.close()
        self._process.wait(10)


@functools.cache
def opened() -> Nursery:
    """The one of this process, from its first use on."""
    made = Nursery()
    atexit.register(made.close)
    return made


def main(control: socket.socket) -> dict[str, Any] | None:
    """Fork whatever is asked for. Comes back with None at the end, and in each new process with what it shall do."""
    exec(READ, {})
    assert threading.active_count() == 1, threading.enumerate()
    # Nobody waits for those that watch.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not descriptors:
            return None
        if os.fork() == 0:
            control.close()
            return _watch(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(line: int, log: int) -> dict[str, Any]:
    """Fork once more: the first tells how the second has ended; the second comes back."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    told = socket.socket(fileno=line)
    with told.makefile("rb") as file:
        asked: dict[str, Any] = json.loads(file.readline())
    pid = os.fork()
    if pid:
        told.sendall(b"%d\n" % pid)
        os.close(log)
        _, status = os.waitpid(pid, 0)
        told.sendall(b"%d" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    told.close()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)
    return asked


def become(asked: dict[str, Any]) -> Any:
    """Settle in as an interpreter does before its first line; the code to run."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    sys.argv = ["-c", *asked["arguments"]]
    sys.path[:] = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path[2:]]
    return compile(asked["code"], "<string>", "exec")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        asked = main(control)
    if asked is not None:
        exec(become(asked), {"__name__": "__main__"})
