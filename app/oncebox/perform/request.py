"""Request: a call as an operation sees it."""

from __future__ import annotations

import builtins
import json
from typing import TypeVar

import msgspec

from oncebox.headers import Headers
from oncebox.model import charset

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `caller` is empty when a public operation is called by somebody without a name; `attempt` is above 1
    when an attempt before this one has failed or was interrupted; `body` is decoded."""

    operation: str
    caller: str
    key: str
    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    attempt: int = 1

    @property
    def content_type(self) -> str:
        """The Content-Type, empty if there is none."""
        return self.headers.get("content-type", "")

    def text(self) -> str:
        """The body as text, by the charset of its content type (UTF-8 unless said), a byte order mark removed."""
        return self.body.decode(charset(self.content_type)).removeprefix("\ufeff")

    def json(self) -> object:
        """The body as JSON; integers of any size are exact."""
        return json.loads(self.text())

    def decode(self, shape: builtins.type[T]) -> T:
        """The body as JSON, validated into a msgspec Struct; raises `msgspec.ValidationError` with the path."""
        return msgspec.json.decode(self.text(), type=shape)
