"""Presets: the table of senders by name."""

from __future__ import annotations

import difflib

from oncebox.accept.preset import Preset
from oncebox.accept.senders.clouds import CLOUDS
from oncebox.accept.senders.messages import MESSAGES
from oncebox.accept.senders.shops import SHOPS
from oncebox.accept.senders.tools import TOOLS
from oncebox.errors import ConfigError

__all__ = ["PRESETS", "Preset", "find_preset"]

PRESETS: dict[str, Preset] = {
    row.name: row for row in sorted((*SHOPS, *TOOLS, *MESSAGES, *CLOUDS), key=lambda row: row.name)
}


def find_preset(name: str) -> Preset:
    """The row of a sender, `-` and `_` alike; raises ConfigError with "did you mean"."""
    found = PRESETS.get(name.replace("-", "_"))
    if found is None:
        close = difflib.get_close_matches(name.replace("-", "_").lower(), PRESETS, 1)
        meant = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(PRESETS)}"
        raise ConfigError(f'preset: "{name}" is not known; {meant}')
    return found
