"""Row: what is known about one sender, as TOML that can be pasted and changed."""

from __future__ import annotations

import json
from collections.abc import Mapping

from oncebox.accept.presets import find_preset
from oncebox.accept.signature import show_signature

# These are no keys of a source, but good to know.
REMARKS = ("note", "on_missing_id")


def preset_toml(name: str) -> str:
    """The row of a preset as a source would write it. Raises ConfigError with "did you mean"."""
    preset = find_preset(name)
    lines = [f"# What preset = {toml(preset.name)} stands for."]
    lines += [f"# {getattr(preset, remark)}" for remark in REMARKS if getattr(preset, remark)]
    if not preset.signs_identity:
        lines.append("# Neither id nor time is signed: whoever captures a request can send it again as a new event.")
    lines.append(f"[sources.{preset.name}]")
    for key in ("id", "type", "time", "batch", "encoding", "handshake"):
        value = getattr(preset, key)
        if value is not None:
            lines.append(f"{key} = {toml(value)}")
    if preset.reply is not None:
        reply = preset.reply
        shown = {"status": reply.status, "content_type": reply.content_type, "body": reply.body.decode()}
        lines.append(f"reply = {toml(shown)}")
    if preset.signature is not None:
        lines.append(f"signature = {toml(show_signature(preset.signature))}")
        lines.append(f'secrets = ["env:{preset.name.upper()}_SECRET"]')
    return "\n".join(lines) + "\n"


def toml(value: object) -> str:
    """A value as inline TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
