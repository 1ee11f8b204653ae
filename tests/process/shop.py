"""A receiver in threads of the test's own process, and the target that posts to it."""

from __future__ import annotations

import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from process.rig import until

SECRET = "whsec_" + b64encode(b"s" * 24).decode()
RETRY = 'retry = { base = "10ms", ceiling = "50ms", factor = 2 }'


class Shop:
    """A receiver in threads of this process that verifies what it gets and counts what it acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: Counter[str] = Counter()
        self.order: list[str] = []
        self.forged = 0
        self.status = 200
        self.pause = 0.0
        # Ids that begin so wait until the shop closes; when each first came, in unix seconds.
        self.hangs: tuple[str, ...] = ()
        self.came: dict[str, float] = {}
        self._closed = Event()
        self._lock = Lock()
        shop = self

        class Hook(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                shop.take(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        class Listener(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                return

        self._listener = Listener(("127.0.0.1", 0), Hook)
        self.url = f"http://127.0.0.1:{self._listener.server_address[1]}/hook"
        Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        id = request.headers["Oncebox-Id"]
        self.came.setdefault(id, time.time())
        time.sleep(self.pause)
        if id.startswith(self.hangs):
            self._closed.wait(60)
        try:
            Webhook(SECRET).verify(body, {name.lower(): value for name, value in request.headers.items()})
        except WebhookVerificationError:
            self.forged += 1
        status = self.status  # once: it may change between the answer and the counting of it
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()
        if status == 200:
            with self._lock:
                self.acknowledged[request.headers["Oncebox-Id"]] += 1
                self.order.append(request.headers["Oncebox-Id"])

    def until(self, count: int) -> None:
        """So many have been acknowledged."""
        until(lambda: len(self.acknowledged) >= count, 20)

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown()
        self._listener.server_close()


@contextmanager
def opened() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.close()


def hook(shop: Shop, more: str = "") -> str:
    return (
        f'[targets.shop]\nurl = "{shop.url}"\nsecret = "plain:{SECRET}"\nconcurrency = 4\n{RETRY}\n'
        f'[[routes]]\nsource = "demo"\nto = "shop"\n{more}'
    )
