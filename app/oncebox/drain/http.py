"""HTTP: a URL as a target. Events are posted as they came."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from yarl import URL

from oncebox.drain.retry import RetryPolicy
from oncebox.drain.verdict import OK, Verdict, bounded, of_timeout
from oncebox.drain.webhook import of_answer, request_headers, shown
from oncebox.model import MICROSECONDS, Claimed, charset

# Common servers close a connection that was silent for 5 s; whoever writes just then loses the request.
KEPT_ALIVE = 4.0
# The part of a try's time in which the connection must stand: later it could not be told from a slow answer.
CONNECTING = 0.75
# An answer is judged by its status; its text is for people and gets this long and no more.
READING = 1.0
READ_BYTES = 4096
DRAINED_BYTES = 65_536
# Larger bodies are written piece by piece.
AT_ONCE = 1 << 20
UNSAID = ("Content-Type",)
SWITCHING = 101


Client = aiohttp.ClientSession


@asynccontextmanager
async def open_client() -> AsyncIterator[Client]:
    """The one client of all URL targets: connections are used again; no cookies, no proxies, no redirects."""
    async with aiohttp.ClientSession(
        connector=Connections(limit=0, keepalive_timeout=KEPT_ALIVE),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": f"oncebox/{version('oncebox')}", "Accept-Encoding": "identity", "Accept": "*/*"},
        skip_auto_headers=UNSAID,
        auto_decompress=False,
        trust_env=False,
    ) as client:
        yield client


class Connections(aiohttp.TCPConnector):
    """Connections that are used again only if the receiver has said nothing since its last answer: it would be taken
    for the answer to what is sent next."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._used = WeakSet[ResponseHandler]()

    async def connect(self, *asked: Any, **how: Any) -> Connection:
        while True:
            connection = await super().connect(*asked, **how)
            protocol = connection.protocol
            assert protocol is not None
            if protocol not in self._used:
                self._used.add(protocol)
                return connection
            if not protocol.should_close:
                return connection
            connection.close()


class Answer:
    """What a receiver says, as far as it has come. The connection is held until it is released or closed."""

    __slots__ = ("_connection", "content", "headers", "status")

    def __init__(self, message: RawResponseMessage, content: aiohttp.StreamReader, connection: Connection) -> None:
        self.status = message.code
        self.headers = message.headers
        self.content = content
        self._connection = connection

    def release(self) -> None:
        """Nothing more comes: the connection is free for the next one."""
        self._connection.release()

    def close(self) -> None:
        """Nobody reads what is left, so the connection is of no more use."""
        self._connection.close()


class Exchange:
    """Posts to one URL over the client's connections, by its parser. What is the same in each request is made once: a
    session makes, copies and checks it for every one, which costs more than sending it."""

    def __init__(self, client: Client, url: str, connecting: aiohttp.ClientTimeout) -> None:
        assert client.connector is not None
        self._connector = client.connector
        self._request = aiohttp.ClientRequest(
            "POST", URL(url), headers=client.headers, skip_auto_headers=UNSAID, session=client
        )
        self._request.headers.popall("Content-Length", None)  # of no body; each has its own
        self._head = f"POST {self._request.url.raw_path_qs} HTTP/1.1\r\n" + _lines(self._request.headers)
        self._connecting = connecting
        self._loop = asyncio.get_running_loop()

    async def post(self, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        """Send a request and wait for the head of its answer, for so many seconds in all. Raises
        ConnectionTimeoutError if no connection came in time, TimeoutError if no answer did, and what aiohttp raises."""
        until = self._loop.time() + seconds
        try:
            connection = await self._connector.connect(self._request, [], self._connecting)
        except TimeoutError:
            raise aiohttp.ConnectionTimeoutError from None
        assert connection.protocol is not None
        late = self._loop.call_at(until, connection.protocol.set_exception, TimeoutError())
        try:
            message, content = await self._ask(connection.protocol, headers, body)
        except BaseException:
            connection.close()
            raise
        finally:
            late.cancel()
        answer = Answer(message, content, connection)
        if content.is_eof():
            answer.release()
        return answer

    async def _ask(
        self, protocol: ResponseHandler, headers: Mapping[str, str], body: bytes
    ) -> tuple[RawResponseMessage, aiohttp.StreamReader]:
        protocol.set_response_params(read_until_eof=True, auto_decompress=False)
        assert protocol.transport is not None
        head = f"{self._head}{_lines(headers)}Content-Length: {len(body)}\r\n\r\n"
        protocol.transport.write(head.encode() + body)
        message, content = await protocol.read()
        while 100 <= message.code < 200 and message.code != SWITCHING:
            message, content = await protocol.read()
        return message, content


def _lines(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


Response = aiohttp.ClientResponse | Answer


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
        self._connecting = aiohttp.ClientTimeout(total=None, connect=timeout * CONNECTING)
        self._exchange: Exchange | None = None

    async def deliver(self, claimed: Claimed) -> Verdict:
        """Post it, and judge the answer. Raises only CancelledError, and not once the receiver has said 2xx."""
        try:
            response = await self._post(claimed)
        except aiohttp.ConnectionTimeoutError:
            return _unreachable(f"no connection within {self._connecting.connect:g} s", "ConnectionTimeout")
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

    async def _post(self, claimed: Claimed) -> Response:
        headers, body = request_headers(claimed, self._now() // MICROSECONDS, self._key), claimed.event.raw
        if len(body) > AT_ONCE:
            return await self._in_pieces(headers, body)
        if self._exchange is None:
            self._exchange = Exchange(self._client, self._url, self._connecting)
        return await self._exchange.post(headers, body, self.timeout)

    async def _in_pieces(self, headers: Mapping[str, str], body: bytes) -> Response:
        async with asyncio.timeout(self.timeout):
            return await self._client.post(
                self._url,
                data=io.BytesIO(body),
                headers={**headers, "Content-Length": str(len(body))},
                timeout=self._connecting,
                allow_redirects=False,
            )

    async def _refused(self, response: Response) -> Verdict:
        text = await _text(response)
        return of_answer(
            response.status,
            snippet=text,
            location=response.headers.get("Location", ""),
            retry_after=response.headers.get("Retry-After", ""),
            now=self._now() / MICROSECONDS,
            least=self.retry.base,
        )


async def _drain(response: Response) -> None:
    """Read the rest, so that the connection can be used again; the outcome is known, so nothing here changes it."""
    with suppress(asyncio.CancelledError):
        await _read(response)


async def _text(response: Response) -> str:
    """What the answer says, as far as it comes in time."""
    found = await _read(response)
    return shown(found[:READ_BYTES], charset(response.headers.get("Content-Type", "")))


async def _read(response: Response) -> bytes:
    """What comes of an answer in time and within bounds. A connection is used again only after the whole of it."""
    found = bytearray()
    try:
        if not response.content.at_eof():
            async with asyncio.timeout(READING):
                while len(found) < DRAINED_BYTES and (some := await response.content.readany()):
                    found += some
    except (TimeoutError, aiohttp.ClientError, OSError):
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
