"""The yardstick of URL targets: the HTTP client's own loop, which posts the same bytes and headers and looks at the
status."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterator

import aiohttp
import uvloop


async def post(session: aiohttp.ClientSession, url: str, work: Iterator[tuple[dict[str, str], bytes]]) -> None:
    """One of several that take from the same work."""
    for headers, body in work:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise SystemExit(f"the receiver answered {response.status}")


async def main() -> None:
    plan = json.loads(sys.argv[1])
    body = b"x" * plan["bytes"]
    work = iter([(dict(plan["headers"]), body) for _ in range(plan["requests"])])
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False) as session:
        gc.collect()
        gc.freeze()
        await asyncio.gather(*(post(session, plan["url"], work) for _ in range(plan["connections"])))


if __name__ == "__main__":
    uvloop.run(main())
