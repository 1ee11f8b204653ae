"""Doors: the configured sources, each compiled to its door at start and at every reload."""

from __future__ import annotations

from secrets import randbits

import msgspec

from oncebox.accept.batch import Batch, compile_batch
from oncebox.accept.door import CREDENTIALS, Door
from oncebox.accept.handshake import METHODS, TOKENS, find_handshake
from oncebox.accept.key import compile_fields
from oncebox.accept.presets import Preset, find_preset
from oncebox.accept.signature import compile_verifier, credential_places, parse_signature
from oncebox.accept.spec import SignatureSpec
from oncebox.address import host_of, is_loopback
from oncebox.config import Config, Server, Settings, Source
from oncebox.errors import ConfigError
from oncebox.model import Reply

NO_PRESET = Preset(name="", signature=None)
_TOKEN_PARAMETER = frozenset({"access_token"})
NONE = frozenset[str]()
_EVERYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104  no names


def compile_doors(settings: Settings) -> dict[str, Door]:
    """A door for each source that receives from outside. Raises ConfigError naming the source."""
    server = settings.server
    doors: dict[str, Door] = {}
    problems: list[str] = []
    for name, source in settings.sources.items():
        if source.internal:
            continue
        try:
            doors[name] = _by_name(compile_door(name, source, server.max_body, server.public_url), server)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        where = f"{settings.path}: " if isinstance(settings, Config) and settings.path else ""
        raise ConfigError(where + "\n  ".join(problems))
    return doors


def _by_name(door: Door, server: Server) -> Door:
    """A source that is for this machine, and one that anybody here may send to, is called by our own names only."""
    if door.loopback_only or (door.verifier is None and is_loopback(server.host)):
        named = frozenset({server.host.strip("[]").lower(), host_of(server.public_url or "")})
        return msgspec.structs.replace(door, hosts=named - _EVERYWHERE)
    return door


def compile_door(name: str, source: Source, limit: int, public_url: str | None = None) -> Door:
    """One source's door: what the source says, else what its preset says. Raises ConfigError naming the key.

    Signed URLs are the source's `url`, else the one below `public_url`, else what the request says of itself.
    """
    where = f"sources.{name}"
    preset = find_preset(source.preset, f"{where}.preset") if source.preset is not None else NO_PRESET
    spec = _signature(source, preset, where)
    id = source.id if source.id is not None else preset.id
    if id is None and source.on_missing_id.policy == "reject":
        raise ConfigError(_no_id(where, preset))
    handshake = source.handshake or preset.handshake
    # A preset's other methods are those of its handshake.
    events = frozenset(source.methods or ("POST",))
    secrets = tuple(secret.value for secret in source.secrets)
    batch = _batch(source.batch or preset.batch, where)
    types = {"id": id, "type": source.type or preset.type, "time": source.time or preset.time}
    fields = compile_fields(types, where)
    headers, parameters = credential_places(spec) if spec is not None else (NONE, NONE)
    if batch is not None and batch.form != "cloudevents" and id is not None and not fields.tells_items_apart:
        raise ConfigError(
            f'{where}: every item of a batch would have the same id; take it from the body: id = "body:/…"'
        )
    return Door(
        source=name,
        limit=source.max_body or limit,
        fields=fields,
        events=events,
        methods=events.union(preset.methods, METHODS.get(handshake or "", ())),
        verifier=None if spec is None else compile_verifier(spec, secrets, where),
        keys=secrets,
        bad_signature=preset.bad_signature,
        greeting=find_handshake(handshake, f"{where}.handshake") if handshake else None,
        token=source.verify_token.value if source.verify_token else "",
        batch=batch,
        encoding=_encoding(source.encoding or preset.encoding),
        reply=_reply(source, preset),
        random=randbits,
        on_missing=source.on_missing_id.policy,
        window=round((source.on_missing_id.window or 0) * 1_000_000),
        reject_conflict=source.on_conflict == "reject",
        hidden=CREDENTIALS | headers,
        hidden_query=_TOKEN_PARAMETER | parameters | TOKENS.get(handshake or "", NONE),
        secretless=bool(headers or parameters),
        loopback_only=source.loopback_only,
        url=source.url or (f"{public_url.rstrip('/')}/in/{name}" if public_url else None),
    )


def _signature(source: Source, preset: Preset, where: str) -> SignatureSpec | None:
    if source.unsigned:
        return None
    if source.signature is None:
        return preset.signature
    return parse_signature(source.signature, f"{where}.signature", preset.signature)


def _encoding(named: str | None) -> str:
    return "" if named in (None, "identity") else named


def _batch(text: str | None, where: str) -> Batch | None:
    try:
        return compile_batch(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{where}.batch: {error}") from None


def _reply(source: Source, preset: Preset) -> Reply | None:
    if source.reply is None:
        return preset.reply
    return Reply(source.reply.status, source.reply.content_type, source.reply.body.encode())


def _no_id(where: str, preset: Preset) -> str:
    if preset.on_missing_id:
        return f"{where}: {preset.name}: {preset.on_missing_id}"
    return (
        f'{where}: nothing says where the id is; set id, or on_missing_id: "body-hash:10m" (equal bodies within ten '
        'minutes are one event, also where two were meant) or "unique" (every request is an event, retries too)'
    )
