"""HTTP: a URL as a target. Events are posted as they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

import aiohttp
from aiohttp.http import HttpProcessingError

from oncebox.drain.connections import Connections
from oncebox.drain.exchange import UNSAID, Answer, Exchange
from oncebox.drain.retry import RetryPolicy
from oncebox.drain.verdict import OK, Verdict, bounded, of_timeout
from oncebox.drain.webhook import of_answer, request_headers, shown
from oncebox.model import MICROSECONDS, Claimed, charset

# The part of a try's time in which the connection must stand: later it could not be told from a slow answer.
CONNECTING = 0.75
# An answer is judged by its status; its text is for people and gets this long and no more.
READING = 1.0
READ_BYTES = 4096
DRAINED_BYTES = 65_536

Client = aiohttp.ClientSession


@asynccontextmanager
async def open_client() -> AsyncIterator[Client]:
    """The one client of all URL targets: connections are used again; no cookies, no proxies, no redirects."""
    async with aiohttp.ClientSession(
        connector=Connections(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"oncebox/{version('oncebox')}", "Accept-Encoding": "identity", "Accept": "*/*"},
        skip_auto_headers=UNSAID,
        auto_decompress=False,
        trust_env=False,
    ) as client:
        yield client


class URLTarget:
    """A URL that deliveries are posted to."""

    in_process = False
    stoppable = True
    keeps_time = True

    def __init__(
        self,
        name: str,
        url: str,
        client: Client,
        now: Callable[[], int],
        *,
        key: bytes | None = None,
        timeout: float = 10.0,
        concurrency: int = 4,
        rate: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.name = name
        self.concurrency = concurrency
        self.rate = rate
        self.retry = retry or RetryPolicy()
        self.timeout = timeout
        self._url = url
        self._key = key
        self._client = client
        self._now = now
        self._connecting = timeout * CONNECTING
        self._exchange: Exchange | None = None

    async def deliver(self, claimed: Claimed) -> Verdict:
        """Post it, and judge the answer. Raises only CancelledError, and not once the receiver has said 2xx."""
        try:
            response = await self._post(claimed)
        except aiohttp.ConnectionTimeoutError:
            return _unreachable(f"no connection within {self._connecting:g} s", "ConnectionTimeout")
        except TimeoutError:
            return of_timeout(self.timeout)
        except (aiohttp.ClientConnectorError, aiohttp.ClientSSLError) as error:
            return _unreachable(f"cannot be reached: {error}", type(error).__name__)
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            return _broken(error)
        if 200 <= response.status < 300:
            if not response.content.is_eof():  # else all of it is here, and the connection is free again
                await _drain(response)
            return OK
        return await self._refused(response)

    def _post(self, claimed: Claimed) -> Awaitable[Answer]:
        if self._exchange is None:
            self._exchange = Exchange(self._client, self._url, self._connecting)
        headers = request_headers(claimed, self._now() // MICROSECONDS, self._key)
        return self._exchange.post(headers, claimed.event.raw, self.timeout)

    async def _refused(self, response: Answer) -> Verdict:
        text = await _text(response)
        return of_answer(
            response.status,
            snippet=text,
            location=response.headers.get("Location", ""),
            retry_after=response.headers.get("Retry-After", ""),
            now=self._now() / MICROSECONDS,
            least=self.retry.base,
        )


async def _drain(response: Answer) -> None:
    """Read the rest, so that the connection can be used again; the outcome is known, so nothing here changes it."""
    with suppress(asyncio.CancelledError):
        await _read(response)


async def _text(response: Answer) -> str:
    """What the answer says, as far as it comes in time."""
    found = await _read(response)
    return shown(found[:READ_BYTES], charset(response.headers.get("Content-Type", "")))


async def _read(response: Answer) -> bytes:
    """What comes of an answer in time and within bounds. A connection is used again only after the whole of it."""
    found = bytearray()
    try:
        if not response.content.at_eof():
            async with asyncio.timeout(READING):
                while len(found) < DRAINED_BYTES and (some := await response.content.readany()):
                    found += some
    except (TimeoutError, aiohttp.ClientError, HttpProcessingError, OSError):
        pass
    finally:
        if response.content.at_eof():
            response.release()
        else:
            response.close()
    return bytes(found)


def _unreachable(why: str, reason: str) -> Verdict:
    return Verdict(outcome="unreachable", error=bounded(why), reason=reason, down=True)


def _broken(error: Exception) -> Verdict:
    """The request went out and no answer came back: it may have been worked through, so it counts."""
    why = f"the connection broke before an answer came: {type(error).__name__}: {error}".rstrip(": ")
    return Verdict(outcome="error", error=bounded(why), reason=type(error).__name__, down=True)
