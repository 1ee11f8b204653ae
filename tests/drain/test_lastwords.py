"""Receivers that answer before they have read the body, and close: what they said counts, though nobody has read it
when the connection breaks."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from drain.delivering import claimed, wall
from oncebox.drain.http import URLTarget, open_client

Runs = Callable[[Coroutine[Any, Any, Any]], Any]
Say = Callable[[socket.socket, bytes], None]
CLOSING = b"\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runs:
    return asyncio.run if request.param == "asyncio" else uvloop.run


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate for localhost, signed by itself."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(True, False, False, False, False, True, True, False, False),
            critical=True,
        )
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


@contextmanager
def receiving(say: Say, certificate: Path | None) -> Iterator[str]:
    """The URL of a receiver that reads a head and leaves the rest to `say`, on a thread for each connection."""
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

    def serve(plain: socket.socket) -> None:
        with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) if context else plain as line:
            came = b""
            while b"\r\n\r\n" not in came:
                came += line.recv(4096)
            say(line, came)

    def accept() -> None:
        with suppress(OSError):
            while True:
                line, _ = listening.accept()
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=serve, args=(line,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http{'s' if certificate else ''}://localhost:{listening.getsockname()[1]}/"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


async def delivered(url: str, size: int, count: int = 24) -> Counter[tuple[str, str | None]]:
    """(outcome, error) of so many deliveries, four at a time."""
    found: Counter[tuple[str, str | None]] = Counter()
    async with open_client() as client:
        target, one = URLTarget("hook", url, client, wall, timeout=10.0), claimed(body=os.urandom(size))

        async def some() -> None:
            for _ in range(count // 4):
                verdict = await target.deliver(one)
                found[verdict.outcome, verdict.error] += 1

        await asyncio.gather(*[some() for _ in range(4)])
    return found


def at_once(line: socket.socket, _came: bytes) -> None:
    line.sendall(b"HTTP/1.1 200 OK" + CLOSING)


def after_some(line: socket.socket, _came: bytes) -> None:
    for _ in range(3):
        line.recv(1 << 16)
    line.sendall(b"HTTP/1.1 200 OK" + CLOSING)


def refusing(line: socket.socket, _came: bytes) -> None:
    line.sendall(b"HTTP/1.1 410 Gone" + CLOSING)


def with_goodbye(line: socket.socket, _came: bytes) -> None:
    line.sendall(b"HTTP/1.1 200 OK" + CLOSING)
    if isinstance(line, ssl.SSLSocket):
        line.unwrap()


def all_of_it(line: socket.socket, came: bytes) -> None:
    length = re.search(rb"Content-Length: (\d+)", came)
    assert length is not None
    left = int(length[1]) - len(came.partition(b"\r\n\r\n")[2])
    while left:
        left -= len(line.recv(1 << 16))
    line.sendall(b"HTTP/1.1 200 OK" + CLOSING)


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [100_000, 1_500_000, 4_000_000])
@pytest.mark.parametrize(
    ("say", "known"),
    [
        (at_once, {("ok", None): 24}),
        (after_some, {("ok", None): 24}),
        (with_goodbye, {("ok", None): 24}),
        (all_of_it, {("ok", None): 24}),
        (refusing, {("refused", "answered 410 Gone\n\nok"): 24}),
    ],
    ids=lambda it: it.__name__ if callable(it) else "",
)
def test_who_answers_and_closes_is_heard(
    run: Runs,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    say: Say,
    known: dict[tuple[str, str | None], int],
    size: int,
    sealed: bool,
) -> None:
    if say is after_some and size < 3 << 16:
        pytest.skip("it would wait for more than there is")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with receiving(say, certificate if sealed else None) as url:
        assert run(delivered(url, size)) == known


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "tls"])
def test_a_broken_connection_leaves_no_descriptor(
    run: Runs,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    sealed: bool,
) -> None:
    def silent(line: socket.socket, _came: bytes) -> None:
        line.recv(1)

    def sockets() -> int:
        return sum(where.startswith("socket:") for where in map(leads_to, Path("/proc/self/fd").iterdir()))

    async def broken() -> None:
        before = sockets()
        assert {outcome for outcome, _ in await delivered(url, 1_500_000)} == {"error"}
        with anyio.fail_after(5):
            while sockets() > before:  # noqa: ASYNC110  # the receiver's threads close theirs
                await asyncio.sleep(0.01)

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with receiving(silent, certificate if sealed else None) as url:
        run(broken())


def leads_to(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""
