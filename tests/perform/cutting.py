"""Cutting: a proxy that passes requests on and cuts the connection before the answer, as networks do."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Mapping
from threading import Thread

from process.rig import Server, parse, read_answer, reset

LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
KEY = re.compile(rb"(?i)\r\nidempotency-key: *([^\r]*)")


class Cutting:
    """Between a client and a server. `cuts` connections are reset after their request was passed on, the first half of
    them at once and the others when the server has answered; `paths` are what the client calls and what it gets."""

    def __init__(self, server: Server, *, cuts: int = 2, paths: Mapping[str, str] = {}) -> None:
        self.keys: list[str] = []
        self.statuses: list[int] = []
        self._server, self._paths = server, paths
        self._cuts, self._at_once = cuts, (cuts + 1) // 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lines: list[socket.socket] = []
        self._threads = [Thread(target=self._listen)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Cutting:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for line in self._lines:
            with contextlib.suppress(OSError):  # its client or a cut has ended it
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._lines.append(line)
            self._threads.append(Thread(target=self._pass_on, args=(line,)))
            self._threads[-1].start()

    def _pass_on(self, line: socket.socket) -> None:
        """All requests of one connection; its client or a cut ends it."""
        with line:
            line.settimeout(20)
            while request := _read_request(line):
                number = len(self.keys)
                found = KEY.search(request)
                self.keys.append(found[1].decode() if found else "")
                with self._server.connect() as upstream:
                    upstream.sendall(self._rewritten(request))
                    if number < min(self._at_once, self._cuts):
                        reset(line)
                        return
                    answer = read_answer(upstream)
                if number < self._cuts:
                    reset(line)
                    return
                self.statuses.append(parse(answer).status)
                line.sendall(answer)

    def _rewritten(self, request: bytes) -> bytes:
        method, path, rest = request.split(b" ", 2)
        return b" ".join((method, self._paths.get(path.decode(), path.decode()).encode(), rest))


def _read_request(line: socket.socket) -> bytes:
    """One request; nothing when the client has gone."""
    got = b""
    try:
        while b"\r\n\r\n" not in got:
            chunk = line.recv(65536)
            if not chunk:
                return b""
            got += chunk
        found = LENGTH.search(got)
        end = got.index(b"\r\n\r\n") + 4 + (int(found[1]) if found else 0)
        while len(got) < end:
            got += line.recv(65536)
    except OSError:
        return b""
    return got
