"""Last words: what a receiver has said and nobody has read when its connection breaks. Who answers from the head alone
and closes breaks the writing of the rest; a transport then lets go of everything, also of the answer that has come."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

READ_BYTES = 65_536


class Sealed(ssl.SSLObject):
    """TLS over what is put into `incoming`."""

    incoming: ssl.MemoryBIO


class Context(ssl.SSLContext):
    """What Python trusts by default, spoken by clients."""

    sslobject_class = Sealed

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *how: Any, **more: Any) -> Sealed:
        made = super().wrap_bio(incoming, outgoing, *how, **more)
        assert isinstance(made, Sealed)
        made.incoming = incoming
        return made


def client_context() -> Context:
    """As `ssl.create_default_context` makes one. It reads the certificates that this machine trusts."""
    usual = ssl.create_default_context()
    made = Context(ssl.PROTOCOL_TLS_CLIENT)
    made.options, made.verify_flags = usual.options, usual.verify_flags
    made.keylog_filename = usual.keylog_filename
    made.load_default_certs()
    made.set_alpn_protocols(("http/1.1",))
    return made


class LastWords:
    """A second hold of a connection: it outlasts the transport's, and has to be ended."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        self._sealed: Sealed | None = transport.get_extra_info("ssl_object")

    def take(self) -> Iterator[bytes]:
        """What is here, as far as it can be read."""
        with suppress(OSError):  # a broken seal is one, too
            while data := self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT):
                yield from [data] if self._sealed is None else _open(self._sealed, data)

    def end(self) -> None:
        """Let it go; nobody else may hold it any more."""
        self._socket.close()


def _open(sealed: Sealed, data: bytes) -> Iterator[bytes]:
    sealed.incoming.write(data)
    with suppress(ssl.SSLWantReadError):
        while found := sealed.read(READ_BYTES):
            yield found
