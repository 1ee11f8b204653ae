"""By which names a source may be called that nobody signs for: a browser can be led to it by any name."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from accept.conftest import OpenInbox
from accept.requests import Sender
from oncebox.accept.doors import compile_doors
from oncebox.config import Server, Settings, Source
from oncebox.secret import Secret

pytestmark = pytest.mark.anyio

Make = Callable[..., Source]
KEYS = (Secret("env:KEY", "s3cret"),)
OURS = ["127.0.0.1:8640", "127.8.8.8", "localhost:8640", "LOCALHOST.", "[::1]:8640", "hooks.example.com"]
OTHERS = ["evil.example", "evil.example:8640", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7", ""]


async def opened(open_inbox: OpenInbox, host: str = "127.0.0.1", **sources: Source) -> Sender:
    sender = await open_inbox({})
    server = Server(host=host, public_url="https://hooks.example.com/inbox")
    sender.inbox.doors = compile_doors(Settings(server=server, sources=sources))
    return sender


@pytest.mark.parametrize("host", OURS)
async def test_an_unsigned_source_here_is_called_by_names_of_this_machine_and_its_public_url(
    open_inbox: OpenInbox, source: Make, host: str
) -> None:
    sender = await opened(open_inbox, shop=source(), demo=source(loopback_only=True))
    assert (await sender.send("shop", '{"id": 1}', ("Host", host))).status == 202
    assert (await sender.send("demo", '{"id": 1}', ("Host", host))).status == 202


@pytest.mark.parametrize("host", OTHERS)
async def test_another_name_is_refused_with_what_to_do(open_inbox: OpenInbox, source: Make, host: str) -> None:
    sender = await opened(open_inbox, shop=source(), demo=source(loopback_only=True))
    for name in ("shop", "demo"):
        problem = await sender.refused(name, '{"id": 1}', ("Host", host))
        assert (problem["status"], problem["slug"]) == (400, "bad-request")
        assert "set server.public_url" in problem["detail"]
    assert await sender.rows("select count(*) from events") == [(0,)]


@pytest.mark.parametrize("bind", ["localhost", "::1", "127.0.0.3"])
async def test_every_way_to_listen_on_this_machine_counts(open_inbox: OpenInbox, source: Make, bind: str) -> None:
    sender = await opened(open_inbox, bind, shop=source())
    assert (await sender.send("shop", '{"id": 1}', ("Host", f"[{bind}]" if ":" in bind else bind))).status == 202
    assert (await sender.refused("shop", '{"id": 1}', ("Host", "evil.example")))["slug"] == "bad-request"


async def test_a_signed_source_answers_any_name(open_inbox: OpenInbox) -> None:
    sender = await opened(open_inbox, gh=Source(preset="github", secrets=KEYS))
    assert (await sender.refused("gh", "{}", ("Host", "evil.example")))["slug"] == "bad-signature"


async def test_a_server_for_everybody_has_names_that_it_cannot_know(open_inbox: OpenInbox, source: Make) -> None:
    sender = await opened(open_inbox, "0.0.0.0", shop=source(), demo=source(loopback_only=True))
    assert (await sender.send("shop", '{"id": 1}', ("Host", "box.example"))).status == 202
    assert (await sender.refused("demo", '{"id": 1}', ("Host", "box.example")))["slug"] == "bad-request"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example:8640"])
async def test_a_page_of_another_site_cannot_send_to_what_is_for_this_machine(
    open_inbox: OpenInbox, source: Make, origin: str
) -> None:
    sender = await opened(open_inbox, demo=source(loopback_only=True))
    here = ("Host", "127.0.0.1:8640")
    assert (await sender.refused("demo", '{"id": 1}', here, ("Origin", origin)))["slug"] == "unauthorized"
    assert (await sender.send("demo", '{"id": 1}', here, ("Origin", "http://localhost:3000"))).status == 202


async def test_a_name_is_checked_before_the_body_is_read_and_what_is_refused_so_is_not_kept(
    open_inbox: OpenInbox, source: Make
) -> None:
    sender = await opened(open_inbox, shop=source(max_body=10))
    problem = await sender.refused("shop", "x" * 100, ("Host", "evil.example"))
    assert problem["slug"] == "bad-request"
    await sender.inbox.refusals.flush()
    assert await sender.rows("select count(*) from refused") == [(0,)]
    assert sender.inbox.refusals.totals["shop", "bad-request"] == 1


def test_the_names_change_with_the_configuration() -> None:
    settings = Settings(sources={"shop": Source(id="body:/id", unsigned=True)})
    assert compile_doors(settings)["shop"].hosts == frozenset({"127.0.0.1"})
    server = Server(public_url="https://Box.example:8443/x", host="[::1]")
    moved = msgspec.structs.replace(settings, server=server)
    assert compile_doors(moved)["shop"].hosts == frozenset({"box.example", "::1"})
