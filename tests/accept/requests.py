"""Requests as tests write them, and who sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from oncebox.accept.inbox import Answer, Inbox, Request
from oncebox.accept.incoming import Incoming, read_headers
from oncebox.store.sqlite import SQLiteStore

NOW = 1_796_000_000_000_000
Header = tuple[str, str]


def incoming(body: bytes | str = b"", *headers: Header, query: str = "", method: str = "POST") -> Incoming:
    """A request that has been read; a header given twice came twice."""
    data = body.encode() if isinstance(body, str) else body
    found, repeated = _headers(headers)
    return Incoming(method, _url("demo", query), query, found, repeated, data, data, NOW)


def posted(
    source: str,
    body: bytes | str = b"",
    *headers: Header,
    query: str = "",
    method: str = "POST",
    peer: str | None = "127.0.0.1",
) -> Request:
    """A request whose body comes in one piece."""
    data = body.encode() if isinstance(body, str) else body
    found, repeated = _headers(headers)

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    return Request(method, _url(source, query), query, found, repeated, receive, len(data), peer)


def _headers(headers: tuple[Header, ...]) -> tuple[dict[str, str], frozenset[str]]:
    return read_headers((name.lower().encode(), value.encode("utf-8")) for name, value in headers)


def _url(source: str, query: str) -> str:
    return f"https://hooks.example.com/in/{source}{'?' if query else ''}{query}"


class Sender:
    """Sends requests to one inbox and looks into its store."""

    def __init__(self, inbox: Inbox, store: SQLiteStore) -> None:
        self.inbox = inbox
        self.store = store

    async def send(self, source: str, body: bytes | str = b"", *headers: Header, **more: Any) -> Answer:
        return await self.inbox.accept(source, posted(source, body, *headers, **more))

    async def refused(self, source: str, body: bytes | str, *headers: Header, **more: Any) -> dict[str, Any]:
        """The problem that a request is answered with."""
        answer = await self.send(source, body, *headers, **more)
        assert answer.content_type == "application/problem+json"
        problem: dict[str, Any] = json.loads(answer.body)
        assert problem["status"] == answer.status
        assert problem["title"] != "Error"
        problem["slug"] = problem.pop("type").removeprefix("urn:oncebox:problem:")
        return problem

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = await self.store.read(lambda db: db.execute(sql).fetchall())
        return rows
