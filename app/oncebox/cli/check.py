"""Check: is this configuration right, and what would run with it?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from oncebox.cli.options import config_option, json_option

SEE = (
    "looking for the file and the machine? see oncebox stats",
    "looking for why a request was refused? see oncebox refused, oncebox explain",
    "looking for what became of a call of /do? see oncebox operations",
)


@click.command()
@click.option("--print-defaults", is_flag=True, help="Print every key with its default, as TOML.")
@click.option("--preset", help="Print what is known about one sender, as TOML.")
@config_option
@json_option
def check(config: Path | None, preset: str | None, *, print_defaults: bool, as_json: bool) -> None:
    """Read the configuration as serve would, and tell what is in it."""
    if print_defaults:
        from oncebox.defaults import print_defaults as defaults

        click.echo(defaults(), nl=False)
        return
    if preset is not None:
        from oncebox.accept.presets import show_preset

        click.echo(show_preset(preset), nl=False)
        return
    found = examine(config)
    if as_json:
        from oncebox.cli.show import print_json

        print_json(found)
    else:
        _print(found)


def examine(path: Path | None) -> dict[str, Any]:
    """What would run. Raises ConfigError or HandlerError for what would not start."""
    from oncebox.accept.doors import compile_doors
    from oncebox.cli.inbox import load_config
    from oncebox.perform.operation import load_operations
    from oncebox.wiring import all_routes, internal, load, unreached

    config = load_config(path)
    doors = compile_doors(config)
    handlers = load(config)
    operations = load_operations(config.handlers)
    routes = all_routes(config, handlers)
    return {
        "config": str(config.path) if config.path else None,
        "database": str(config.store.path),
        "address": f"http://{config.server.host}:{config.server.port}",
        "sources": [_source(config, name, door) for name, door in doors.items()],
        "internal": sorted(internal(config, routes)),
        "handlers": [
            {"name": one.name, "kind": one.kind, "source": one.route.source, "type": one.route.type, "at": one.place}
            for one in handlers.handlers
        ],
        "operations": [_operation(one) for one in operations.values()],
        "callers": sorted(config.callers),
        "tokens": {name: token.may for name, token in config.tokens.items()},
        "warnings": [
            *config.warnings,
            *unreached(config, handlers, routes),
            *_implied(config, handlers, routes),
            *_warnings(config, doors, routes),
            *_uncalled(config, operations),
        ],
    }


def _operation(one: Any) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.signature.kind,
        "methods": list(one.methods),
        "takes": None if one.shape is None else one.shape.__name__,
        "public": one.public,
        "retry_safe": one.retry_safe,
        "at": one.place,
    }


def _uncalled(config: Any, operations: Any) -> list[str]:
    """Operations that nobody may call, and callers that have nothing to call."""
    if config.callers and not operations:
        return ["callers: there is no @operation in the handler modules, so /do has nothing for them"]
    closed = [name for name, one in operations.items() if not one.public]
    if not closed or config.callers:
        return []
    which = "/do" if len(closed) == len(operations) else ", ".join(f"/do/{name}" for name in closed)
    return [f"callers: none, so {which} answers 401; name some in [callers], or say public=True on an operation"]


def _implied(config: Any, handlers: Any, routes: Any) -> list[str]:
    from oncebox.listening import implied
    from oncebox.wiring import listeners

    return list(implied(listeners(config, handlers, routes), config.sources))


def _source(config: Any, name: str, door: Any) -> dict[str, Any]:
    from oncebox.accept.presets import find_preset

    source = config.sources[name]
    preset = find_preset(source.preset) if source.preset else None
    id = source.id if source.id is not None else preset.id if preset else None
    base = config.server.public_url or f"http://{config.server.host}:{config.server.port}"
    return {
        "name": name,
        "url": f"{base}/in/{name}",
        "preset": preset.name if preset else None,
        "id": id if id is None or isinstance(id, str) else list(id),
        "checked": _checked(source, preset, door),
        "secrets": [secret.ref for secret in source.secrets],
        "on_missing_id": source.on_missing_id.policy,
    }


def _checked(source: Any, preset: Any, door: Any) -> str:
    if door.verifier is None:
        return "nothing, from this machine only" if source.loopback_only else "nothing"
    if source.signature is not None and "scheme" in source.signature:
        return str(source.signature["scheme"])
    return str(preset.signature.scheme) if preset and preset.signature else "signature"


def _warnings(config: Any, doors: Any, routes: Any) -> list[str]:
    from oncebox.accept.presets import find_preset, replay_warning
    from oncebox.route import listened

    heard = listened(routes, doors)
    found = [f"sources.{name}: nothing listens; its events are kept as unrouted" for name in doors if name not in heard]
    for name, source in config.sources.items():
        preset = find_preset(source.preset) if source.preset else None
        if name in doors and source.unsigned and not source.loopback_only:
            found.append(f"sources.{name}: unsigned, so anybody who knows the URL may send")
        if source.on_missing_id.policy == "body-hash":
            found.append(f"sources.{name}: equal bodies are one event, even if the sender meant it twice")
        if preset and source.signature is None and not source.unsigned and (warning := replay_warning(preset)):
            found.append(f"sources.{name}: {warning}")
        if name in doors and doors[name].needs_token:
            found.append(f"sources.{name}: without verify_token its sender cannot have the URL verified")
        if preset and preset.note:
            found.append(f"sources.{name}: {preset.note}")
    if not config.tokens:
        found.append("tokens: none; an admin token is made at the first start, in a file beside the database")
    return found


def _print(found: dict[str, Any]) -> None:
    from oncebox.cli.show import clean, print_facts, print_table

    print_facts(
        [
            ("configuration", found["config"] or "built in (there is no litestar.toml here)"),
            ("database", found["database"]),
            ("address", found["address"]),
            ("tokens", ", ".join(f"{name} ({may})" for name, may in found["tokens"].items()) or None),
            ("callers", ", ".join(found["callers"]) or None),
            ("internal", ", ".join(found["internal"]) or None),
        ]
    )
    click.echo()
    print_table(
        ("source", "url", "id", "checked by", "secrets"),
        [(s["name"], s["url"], _id(s), s["checked"], ", ".join(s["secrets"]) or None) for s in found["sources"]],
    )
    if found["handlers"]:
        click.echo()
        print_table(
            ("handler", "kind", "source", "type", "at"),
            [(h["name"], h["kind"], h["source"], h["type"], h["at"]) for h in found["handlers"]],
        )
    if found["operations"]:
        click.echo()
        print_table(
            ("operation", "kind", "methods", "takes", "who", "if in doubt", "at"),
            [
                (
                    one["name"],
                    one["kind"],
                    ", ".join(one["methods"]),
                    one["takes"],
                    "anybody" if one["public"] else "callers",
                    "rolled back" if one["kind"] == "transactional" else "again" if one["retry_safe"] else "unknown",
                    one["at"],
                )
                for one in found["operations"]
            ],
        )
    click.echo()
    for warning in found["warnings"]:
        click.echo(f"note: {clean(warning)}")
    click.echo("the configuration is good")
    for line in SEE:
        click.echo(line)


def _id(source: dict[str, Any]) -> str:
    id = source["id"]
    if id is None:
        return f"none ({source['on_missing_id']})"
    return id if isinstance(id, str) else " + ".join(id)
