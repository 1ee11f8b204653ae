"""Client: requests to a running server, straight to it, without any proxy."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from oncebox.address import is_url
from oncebox.cli.show import clean
from oncebox.errors import Misused, NotReachable, OnceboxError

TIMEOUT = 30.0
PATIENCE = 600.0


class Answer(msgspec.Struct, frozen=True):
    """What came back; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One server, one request a connection."""

    def __init__(self, url: str, token: str | None = None) -> None:
        whole = url.strip() if "//" in url else f"http://{url.strip()}"
        if not is_url(whole):
            raise Misused(f"{clean(url)}: is not the URL of a server, such as http://127.0.0.1:8640")
        parts = urlsplit(whole)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._secure = parts.scheme == "https"
        self._host, self._port, self._base = str(parts.hostname), parts.port, parts.path.rstrip("/")
        self._asking = {"Authorization": f"Bearer {token}"} if token else {}

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
        timeout: float | None = None,
    ) -> Answer:
        """One request. Raises NotReachable when nobody answers."""
        within = TIMEOUT if timeout is None else timeout
        connection = self._connect()
        try:
            connection.request(method, f"{self._base}{path}", body=body, headers=dict(headers))
            connection.sock.settimeout(within)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        except (ValueError, http.client.InvalidURL) as error:
            raise Misused(f"this cannot be sent to {self.url}: {clean(str(error))}") from None
        except TimeoutError as error:
            later = (
                ""
                if method == "GET" or connection.sock is None
                else "; what was asked may still happen: look before you ask again"
            )
            raise NotReachable(f"{self.url} has not answered in {within:g} s{later}") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error
        finally:
            connection.close()

    def get(self, path: str, query: Mapping[str, str | None] = {}) -> dict[str, Any]:
        """The JSON answer to a question. Raises OnceboxError with what the server says is wrong."""
        return self._object(path, self.fetch(path, query))

    def _object(self, path: str, answer: Answer) -> dict[str, Any]:
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise OnceboxError(f"{self.url}{path}: answers, but not as Oncebox does; is the URL right?")
        return found

    def fetch(self, path: str, query: Mapping[str, str | None] = {}) -> Answer:
        """The answer to a question as it is. Raises OnceboxError with what the server says is wrong."""
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        answer = self.request("GET", f"{path}?{asked}" if asked else path, headers=self._asking)
        if answer.status >= 400:
            raise self._problem(answer)
        return answer

    def glance(self, path: str) -> dict[str, Any]:
        """What a stream of server-sent events says first. Raises OnceboxError as `get` does."""
        connection = self._connect()
        try:
            connection.request("GET", f"{self._base}{path}", headers=self._asking)
            response = connection.getresponse()
            lines = iter(response.readline, b"") if response.status < 400 else ()
            data = next((line[6:] for line in lines if line.startswith(b"data: ")), b"")
            answer = Answer(response.status, {}, data or response.read())
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise self._problem(answer)
        return self._object(path, answer)

    def post(self, path: str, value: object, timeout: float | None = None) -> dict[str, Any]:
        """The JSON answer to a change. Raises OnceboxError with what the server says is wrong."""
        return self._change("POST", path, json.dumps(value).encode(), timeout)

    def delete(self, path: str) -> dict[str, Any]:
        """The JSON answer to an end that is put to something. Raises OnceboxError as `post` does."""
        return self._change("DELETE", path, None)

    def _change(self, method: str, path: str, body: bytes | None, timeout: float | None = None) -> dict[str, Any]:
        answer = self.request(method, path, body, {"Content-Type": "application/json", **self._asking}, timeout)
        if answer.status >= 400:
            raise self._problem(answer)
        return self._object(path, answer)

    def _silent(self, error: Exception) -> NotReachable:
        return NotReachable(
            f"no server answers at {self.url} ({_why(error)}); start one with `oncebox serve`, or name it by --url"
        )

    def _problem(self, answer: Answer) -> OnceboxError:
        try:
            detail = json.loads(answer.body)["detail"]
        except (ValueError, KeyError, TypeError):
            detail = f"the server at {self.url} answered {answer.status}"
        if answer.status in (401, 403):
            return OnceboxError(f"{self.url}: {detail} (--token or $ONCEBOX_TOKEN)")
        return Misused(str(detail)) if answer.status == 400 else OnceboxError(str(detail))

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT)
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or type(error).__name__
