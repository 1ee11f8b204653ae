"""Refused: what was turned away, and accepting it after all."""

from __future__ import annotations

import sys
from typing import Any

import click

from oncebox.cli.look import no_source
from oncebox.cli.look import refused as listed
from oncebox.cli.options import Asked, asking

PAGE = "500"
Json = dict[str, Any]


class Listing(click.Group):
    """A group whose first command is meant when none is named: `refused 7` is `refused list 7`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Listing)
def refused() -> None:
    """List requests that were turned away and why; with a number, one of them whole; or accept them after all."""


refused.add_command(listed, "list")


@refused.command()
@click.argument("n", type=click.IntRange(1), required=False)
@click.option("--all", "source", metavar="SOURCE", help="All of this source that were not accepted yet, oldest first.")
@click.option("--trust", is_flag=True, help="Leave the signature out of account; this is recorded.")
@asking
def accept(asked: Asked, n: int | None, source: str | None, *, trust: bool) -> None:
    """Accept a refused request by today's configuration and the time of its arrival; its id still decides."""
    if (n is None) == (source is None):
        raise click.UsageError("Give a number, or --all SOURCE.")
    from oncebox.cli.inbox import client_for, load_config, open_inbox
    from oncebox.errors import OnceboxError
    from oncebox.store.offline import open_offline

    client = client_for(asked)
    if client is None:
        config = load_config(asked.config)
        with open_offline(config.store.path):  # one that is not there is not made by looking for what it refused
            pass
        found = _in_file(config, n, source, trust=trust)
    else:
        numbers = [n] if n is not None else _waiting(client, str(source))
        found = [_posted(client, one, trust=trust) for one in numbers]
    if not found:
        with open_inbox(asked) as inbox:
            hint = no_source(inbox, source)
        if hint:
            raise OnceboxError(hint)
    _report(asked, found)


def _waiting(client: Any, source: str) -> list[int]:
    """The numbers of a source's requests that were not accepted yet, oldest first."""
    found: list[int] = []
    cursor: str | None = None
    while True:
        page = client.get("/api/refused", {"source": source, "limit": PAGE, "cursor": cursor})
        found += [one["n"] for one in page["refused"] if one["accepted_at"] is None]
        cursor = page["next"]
        if cursor is None:
            return found[::-1]


def _posted(client: Any, n: int, *, trust: bool) -> Json:
    from oncebox.errors import NotReachable, OnceboxError

    try:
        accepted: Json = client.post(f"/api/refused/{n}/accept", {"trust": trust})
    except NotReachable:
        raise
    except OnceboxError as error:
        return {"n": n, "accepted_at": None, "detail": str(error)}
    return accepted


def _in_file(config: Any, n: int | None, source: str | None, *, trust: bool) -> list[Json]:
    """The same in a file that no server has open, which is held for as long as it takes."""
    import anyio

    from oncebox.accept.doors import compile_doors
    from oncebox.accept.inbox import Inbox
    from oncebox.clock import wall_clock
    from oncebox.store.refusals import waiting
    from oncebox.store.sqlite import open_store
    from oncebox.wiring import all_routes, internal, load, route_by, store_options, target_names

    doors, handlers = compile_doors(config), load(config)
    routes, names = all_routes(config, handlers), target_names(config, handlers)
    router, sources, options = route_by(routes), internal(config, routes), store_options(config)

    async def work() -> list[Json]:
        path = config.store.path
        async with open_store(path, router=router, internal=sources, targets=names, options=options) as store:
            inbox = Inbox(doors, store, wall_clock)
            numbers = [n] if n is not None else await store.read(lambda db: waiting(db, str(source)))
            return [await _tried(store, inbox, one, trust=trust) for one in numbers]

    return anyio.run(work)


async def _tried(store: Any, inbox: Any, n: int, *, trust: bool) -> Json:
    """One by itself: being refused again does not keep the others."""
    from oncebox.clock import wall_clock
    from oncebox.errors import Rejected
    from oncebox.operate.refused import accept_refused

    try:
        return await accept_refused(store, inbox.again, n, trust=trust, who="command line", now=wall_clock())
    except Rejected as error:
        return {"n": n, "accepted_at": None, "detail": str(error)}


def _report(asked: Asked, found: list[Json]) -> None:
    from oncebox.cli.show import clean, print_json

    done = [one for one in found if one["accepted_at"] is not None]
    if asked.as_json:
        print_json({"accepted": len(done), "refused": len(found) - len(done), "requests": found})
    else:
        for one in found:
            repeat = " (this event was there already)" if one.get("replayed") else ""
            click.echo(f"{one['n']}: {'accepted' + repeat if one in done else clean(one['detail'])}")
        click.echo(f"{len(done)} of {len(found)} accepted")
    sys.exit(0 if len(done) == len(found) else 1)
