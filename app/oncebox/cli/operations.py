"""Operations: the calls that were made, how each ended, and deciding how unknown ones did."""

from __future__ import annotations

import json
from typing import IO, Any

import click

from oncebox.cli.options import Asked, asking
from oncebox.cli.refused import Listing

NOBODY = "-"
STATES = "running, interrupted, failed, unknown or done."

Json = dict[str, Any]


@click.group(cls=Listing)
def operations() -> None:
    """List calls of operations, show one, or decide how an unknown one ended."""


@operations.command("list")
@click.option("--state", help=STATES)
@click.option("--operation", help="Exactly this operation.")
@click.option("--caller", help='Exactly this caller; "-" for those without a name.')
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--cursor", help="Where a list before this one ended.")
@asking
def listed(asked: Asked, limit: int, caller: str | None, **given: str | None) -> None:
    """List calls, newest first."""
    from oncebox.cli.callbook import open_callbook
    from oncebox.cli.show import print_json, print_table, stamp

    book = open_callbook(asked)
    found = book.calls({**given, "caller": None if caller is None else _name(caller), "limit": str(limit)})
    if asked.as_json:
        print_json(found)
        return
    names = ("operation", "state", "attempts", "status", "error")
    rows = [
        (stamp(one["started_at"]), one["caller"] or NOBODY, one["key"], *(one[name] for name in names))
        for one in found["operations"]
    ]
    print_table(("started (utc)", "caller", "key", *names), rows)
    if found["next"] is not None:
        click.echo(f"there may be more: --cursor {found['next']}", err=True)


@operations.command()
@click.argument("caller")
@click.argument("key")
@asking
def show(asked: Asked, caller: str, key: str) -> None:
    """Show one call and what each repeat is answered.

    "-" stands for the caller who has no name.
    """
    from oncebox.cli.callbook import open_callbook
    from oncebox.cli.show import clean, print_facts, print_json

    book = open_callbook(asked)
    found = book.call(_name(caller), key)
    if asked.as_json:
        print_json(found)
        return
    names = ("operation", "state", "attempts", "started_at", "finished_at", "status", "error")
    whose = ("caller", found["caller"] or NOBODY)
    print_facts([whose, ("key", found["key"]), *((name, found[name]) for name in names)])
    for name, value in (found["reply"] or {}).get("headers", ()):
        click.echo(f"  {clean(name)}: {clean(value)}")
    click.echo(meaning(found, live=book.live))
    _print_body(found["reply"] or {})


def _print_body(reply: Json) -> None:
    from oncebox.cli.show import clean

    if "body" in reply:
        click.echo(f"\n{clean(reply['body'])}")
    elif "body_base64" in reply:
        click.echo(f"\n{reply['size']} bytes that are no text; --json shows them in base64")


def meaning(call: Json, *, live: bool) -> str:
    """What a repeat of this call would meet, and what there is to do."""
    from oncebox.cli.show import clean

    if call["state"] == "running" and not live:
        return "It was running when the server ended; the next start finds out whether it may run again."
    whose = f"{call['caller'] or NOBODY} {clean(call['key'])}"
    return {
        "done": "Each repeat of the same request gets this reply.",
        "running": "It is running; whoever repeats the request waits for it.",
        "failed": "It failed and may run again: the same request is performed when it is sent again.",
        "interrupted": "The process ended while it was running; the same request runs it again when it is sent again.",
        "unknown": (
            "It was started, and nobody knows how it ended: repeats get 409. Look on the other side whether it "
            f"happened, then: oncebox operations resolve {whose} --as free (it did not; it may be sent again), or "
            "--as done --reply FILE (it did; repeats get this reply)."
        ),
    }[call["state"]]


@operations.command()
@click.argument("caller")
@click.argument("key")
@click.option("--as", "as_", type=click.Choice(["free", "done"]), required=True, help="It did not happen, or it did.")
@click.option("--reply", type=click.File("rb"), help="What repeats are answered, with --as done; a file of JSON, or -.")
@asking
def resolve(asked: Asked, caller: str, key: str, as_: str, reply: IO[bytes] | None) -> None:
    """Decide how an unknown call ended: nothing happened and its key is free, or it was done.

    Who did it is recorded in the acts. The file of --reply is such as {"status": 201, "headers": {"Location":
    "/orders/7"}, "body": {"id": 7}}. A body that is a text is sent as it is, any other JSON as it is written there;
    "body_base64" in its place is for bytes. Of the headers there are Content-Type, Location, ETag, Link and
    Content-Language.
    """
    from oncebox.cli.callbook import open_callbook
    from oncebox.cli.show import clean, print_json

    if (reply is None) == (as_ == "done"):
        raise click.UsageError("--as done needs --reply FILE" if as_ == "done" else "--reply goes with --as done only")
    order: Json = {"caller": _name(caller), "key": key, "as": as_}
    if reply is not None:
        order["reply"] = read_reply(reply.read())
    found = open_callbook(asked).resolve(order)
    if asked.as_json:
        print_json(found)
        return
    then = "the same request may be sent again" if as_ == "free" else f"each repeat is answered {found['status']}"
    click.echo(f"{found['caller'] or NOBODY} {clean(found['key'])} is {as_}: {then}")


def read_reply(text: bytes) -> Json:
    """The reply in a file as it is sent on: a body that is JSON keeps its digits as they are written.

    Raises Misused.
    """
    import msgspec

    from oncebox.errors import Misused
    from oncebox.operate.operations import GivenReply

    try:
        given = msgspec.json.decode(text, type=GivenReply)
    except msgspec.DecodeError as error:
        example = json.dumps({"status": 201, "headers": {}, "body": {"id": 7}})
        raise Misused(f"--reply: {error}; write such as {example}") from None
    body, headers = bytes(given.body).decode(), dict(given.headers)
    if given.body_base64 is not None:
        more = {"body_base64": given.body_base64} | ({"body": body} if body else {})
        return {"status": given.status, "headers": headers, **more}
    if body in ("", "null") or body.startswith('"'):
        return {"status": given.status, "headers": headers, "body": json.loads(body or "null")}
    if not any(name.lower() == "content-type" for name in headers):
        headers["content-type"] = "application/json"
    return {"status": given.status, "headers": headers, "body": body}


def _name(caller: str) -> str:
    return "" if caller == NOBODY else caller
