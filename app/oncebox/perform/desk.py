"""Desk: the front half of operations. A call is checked, read and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from oncebox.body import Receive, decode, read_body
from oncebox.errors import Rejected
from oncebox.headers import Headers
from oncebox.perform.answer import Answer, of_error
from oncebox.perform.callers import Callers
from oncebox.perform.fingerprint import fingerprint
from oncebox.perform.key import NAME, idempotency_key
from oncebox.perform.operation import Operation
from oncebox.perform.performer import Performer
from oncebox.perform.request import Request

PATH = "/do"
AUTHORIZATION = b"authorization"
# The structure of megabytes takes half a second, in which nobody else would be answered.
LARGE = 64 << 10
_NOWHERE = "there is no operation of this name here; they are called at /do/ and their name"


class Asked(msgspec.Struct, frozen=True):
    """A request whose body has not been read yet, as ASGI gives it."""

    operation: str
    method: str
    query: str
    headers: Sequence[tuple[bytes, bytes]]
    receive: Receive

    def values(self, name: bytes) -> list[bytes]:
        """The values of a header, in their order; `name` is in lower case."""
        return [value for key, value in self.headers if key.lower() == name]

    def value(self, name: bytes) -> str:
        """The first value of a header; empty if there is none."""
        return next(iter(self.values(name)), b"").decode("latin-1")


class Desk:
    """Operations as they are called. `callers` may be exchanged at any time."""

    def __init__(self, performer: Performer, callers: Callers, *, limit: int) -> None:
        self.performer = performer
        self.callers = callers
        self.limit = limit

    async def serve(self, asked: Asked) -> Answer:
        """Answer a call. The checks come in this order: caller, operation, method, key, size, encoding. Raises
        ClientGone."""
        try:
            operation, caller, key = self._admitted(asked)
            wire = await read_body(asked.receive, self.limit, _length(asked.value(b"content-length")))
            request = self._request(asked, operation, caller, key, wire)
        except Rejected as why:
            return of_error(why)
        parts = (request.method, request.path, request.query, request.content_type, request.body)
        size = len(request.body)
        print_ = fingerprint(*parts) if size < LARGE else await asyncio.to_thread(fingerprint, *parts)
        call = self.performer.perform(operation, request, print_)
        # While a twin waits, nobody but the call has its body, which lets go of it.
        del wire, request, parts
        return await call

    def _request(self, asked: Asked, operation: Operation[..., object], caller: str, key: str, wire: bytes) -> Request:
        headers = Headers(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in asked.headers
            if name.lower() != AUTHORIZATION  # a secret of ours
        )
        return Request(
            operation=operation.name,
            caller=caller,
            key=key,
            method=asked.method,
            path=f"{PATH}/{operation.name}",
            query=asked.query,
            headers=headers,
            body=decode(wire, asked.value(b"content-encoding"), self.limit),
        )

    def _admitted(self, asked: Asked) -> tuple[Operation[..., object], str, str]:
        operation = self.performer.operations.get(asked.operation)
        caller = self.callers.who(asked.values(AUTHORIZATION), public=operation is not None and operation.public)
        if operation is None:
            raise Rejected(404, "not-found", _NOWHERE)
        if asked.method not in operation.methods:
            allowed = ", ".join(operation.methods)
            raise Rejected(405, "bad-request", f"this operation takes {allowed}", (("allow", allowed),))
        return operation, caller, idempotency_key(asked.values(NAME))


def _length(declared: str) -> int | None:
    return int(declared) if declared.isdecimal() and len(declared) < 20 else None
