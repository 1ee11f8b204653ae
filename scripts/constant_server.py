"""The yardstick: the same stack as the product, answering every request with a constant 202 of the receipt's size."""

from __future__ import annotations

import gc
import sys

import uvicorn
import uvloop
from litestar import Litestar, asgi
from litestar.types import Receive, Scope, Send

BODY = b'{"source":"bench","id":"evt_000000_000000000000","received_at":"2026-12-02T01:02:03.000004Z"}'
START = {
    "type": "http.response.start",
    "status": 202,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())],
}
END = {"type": "http.response.body", "body": BODY}


@asgi("/in", is_mount=True, copy_scope=False)
async def constant(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body whole, as the product must, and answer."""
    while (await receive()).get("more_body"):
        pass
    await send(START)  # type: ignore[arg-type]  # the plain dictionary that every ASGI server takes
    await send(END)  # type: ignore[arg-type]


def main() -> None:
    config = uvicorn.Config(
        Litestar([constant], openapi_config=None),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        http="httptools",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
    )
    gc.collect()
    gc.freeze()
    uvloop.run(uvicorn.Server(config).serve())


if __name__ == "__main__":
    main()
