"""A process that is held up, as with its machine, takes what has come meanwhile for what it is: in time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from process.rig import clean_stop, until
from process.servers import Serve
from process.shop import RETRY, Shop, opened

pytestmark = pytest.mark.process
TARGETS = {
    "url": 'url = "{url}"',
    "command": 'command = ["sh", "-c", "touch began; sleep 0.3; echo >> ended"]',
}
HANDLER = """
import asyncio
from pathlib import Path
from oncebox import Event, on

@on("demo", timeout="1s")
async def asks(event: Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", {port})
    writer.write(b"POST / HTTP/1.0\\r\\nOncebox-Id: e1\\r\\nContent-Length: 0\\r\\n\\r\\n")
    assert b" 200 " in await reader.readline()
    await reader.read()
    writer.close()
    Path("ended").open("a").write("\\n")
"""


@pytest.fixture
def shop() -> Iterator[Shop]:
    with opened() as shop:
        yield shop


@pytest.mark.parametrize("kind", ["url", "command", "handler"])
def test_what_has_answered_while_the_process_was_held_up_is_done(serve: Serve, shop: Shop, kind: str) -> None:
    shop.pause = 0.3
    port = shop.url.rpartition(":")[2].partition("/")[0]
    if kind == "handler":
        server = serve(handlers=HANDLER.format(port=port))
    else:
        target = TARGETS[kind].format(url=shop.url)
        routes = '[[routes]]\nsource = "demo"\nto = "it"\n'
        server = serve(config=f'[targets.it]\n{target}\ntimeout = "1s"\n{RETRY}\n{routes}')
    server.start()
    server.post("e1")
    until(lambda: "e1" in shop.came or (server.folder / "began").exists(), 5)
    server.signal(signal.SIGSTOP)
    time.sleep(1.5)
    server.signal(signal.SIGCONT)
    server.until_quiet(10)
    assert server.rows("select state, outcome, attempts from v_deliveries") == [("done", "ok", 1)]
    if kind == "url":
        assert shop.acknowledged == {"e1": 1}
    else:
        assert (server.folder / "ended").read_text() == "\n"
    clean_stop(server)
