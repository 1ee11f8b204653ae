"""Presets: the table of senders by name, and how it is shown."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping

from oncebox.accept.preset import Preset
from oncebox.accept.senders.clouds import CLOUDS
from oncebox.accept.senders.messages import MESSAGES
from oncebox.accept.senders.shops import SHOPS
from oncebox.accept.senders.tools import TOOLS
from oncebox.accept.signature import SignatureSpec, show_signature
from oncebox.errors import ConfigError

__all__ = ["PRESETS", "Preset", "find_preset", "preset_table", "replay_warning", "show_preset"]

PRESETS: dict[str, Preset] = {
    row.name: row for row in sorted((*SHOPS, *TOOLS, *MESSAGES, *CLOUDS), key=lambda row: row.name)
}
_KEYS = ("id", "type", "time", "batch", "encoding", "handshake")
_CAPTURED = {
    "hmac": "neither id nor time is signed: whoever captures one request can send it again under a new id",
    "token": "nothing is signed: whoever captures one request has the secret and can send events of his own",
    "pubkey": "id and body are not signed as a whole: whoever captures one request can change it and send it again",
    "jws": "the token does not prove the body: whoever captures one request can send other events until it expires",
}
_HEAD = ("preset", "signature", "id", "batch", "handshake", "answer")


def find_preset(name: str, where: str = "preset") -> Preset:
    """The row of a sender, `-` and `_` alike; raises ConfigError with "did you mean"."""
    found = PRESETS.get(name.replace("-", "_"))
    if found is None:
        close = difflib.get_close_matches(name.replace("-", "_").lower(), PRESETS, 1)
        meant = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(PRESETS)}"
        raise ConfigError(f'{where}: "{name}" is not known; {meant}')
    return found


def replay_warning(row: Preset) -> str | None:
    """What to know of a sender that signs neither id nor time; None for the others."""
    if row.signs_identity or row.signature is None:
        return None
    return _CAPTURED[row.signature.scheme]


def show_preset(name: str) -> str:
    """The row of a sender as TOML, ready to be edited; raises ConfigError with "did you mean"."""
    row = find_preset(name)
    lines = [f"# What preset = {_toml(row.name)} stands for.", *(f"# {remark}" for remark in _remarks(row))]
    lines.append(f"[sources.{row.name}]")
    lines += [f"{key} = {_toml(value)}" for key in _KEYS if (value := getattr(row, key)) is not None]
    if row.on_missing_id:
        lines.append('# on_missing_id = "unique"  # or another choice, see above; without one the start is refused')
    if row.reply is not None:
        reply = {"status": row.reply.status, "content_type": row.reply.content_type, "body": row.reply.body.decode()}
        lines.append(f"reply = {_toml(reply)}")
    if row.signature is not None:
        lines.append(f"signature = {_toml(show_signature(row.signature))}")
        lines.append(f'secrets = ["env:{row.name.upper()}_SECRET"]')
    if row.handshake == "meta":
        lines.append(f'verify_token = "env:{row.name.upper()}_VERIFY_TOKEN"')
    return "\n".join(lines) + "\n"


def preset_table() -> str:
    """All senders as a Markdown table: how each signs, what its events are told apart by, what it is answered."""
    rows = [_HEAD, tuple("---" for _ in _HEAD), *(_cells(row) for row in PRESETS.values())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _remarks(row: Preset) -> Iterator[str]:
    warning = replay_warning(row)
    if warning is not None:
        yield f"Beware: {warning}."
    if row.note:
        yield row.note
    if row.on_missing_id:
        yield row.on_missing_id
    if row.bad_signature != 401:
        yield f"With the preset a wrong signature is answered {row.bad_signature}, without it 401."


def _cells(row: Preset) -> tuple[str, ...]:
    id = " + ".join([row.id] if isinstance(row.id, str) else row.id or ())
    return (
        f"`{row.name}`",
        _signed(row) + ("" if row.signs_identity else " ⚠"),
        f"`{id}`" if id else "none: `on_missing_id`",
        f"`{row.batch}`" if row.batch else "",
        row.handshake or "",
        str(row.reply.status) if row.reply else "",
    )


def _signed(row: Preset) -> str:
    spec = row.signature
    if spec is None:
        return ""
    words = {"hmac": spec.hash, "pubkey": spec.algo, "jws": " ".join(spec.algs), "token": ""}[spec.scheme]
    return f"{spec.scheme} {words}".strip() + _age(spec)


def _age(spec: SignatureSpec) -> str:
    limit = spec.timestamp.past if spec.timestamp else spec.claims.iat_max_age
    return f", {limit:.0f} s" if 0 < limit < float("inf") else ""


def _toml(value: object) -> str:
    """A value as inline TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
