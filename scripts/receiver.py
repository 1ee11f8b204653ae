"""A receiver for the measurements: takes each POST whole and answers 200; `GET` tells how many and when."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from typing import cast

import uvloop

LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class Seen:
    """How many came since the last look, and the time in seconds of the first and the last."""

    def __init__(self) -> None:
        self.count, self.first, self.last = 0, 0.0, 0.0

    def note(self) -> None:
        self.last = time.time()
        self.first = self.first or self.last
        self.count += 1

    def told(self) -> bytes:
        body = f"{self.count} {self.first} {self.last}".encode()
        self.count, self.first, self.last = 0, 0.0, 0.0
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Receiver(asyncio.Protocol):
    """One connection."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._got, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._got) < whole:
                return
            self._answer(self._got[:4])
            self._got = self._got[whole:]

    def _answer(self, method: bytes) -> None:
        if method == b"GET ":
            self._transport.write(self._seen.told())
        else:
            self._seen.note()
            self._transport.write(ANSWER)


async def main() -> None:
    seen = Seen()
    server = await asyncio.get_running_loop().create_server(lambda: Receiver(seen), "127.0.0.1", int(sys.argv[1]))
    gc.freeze()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
