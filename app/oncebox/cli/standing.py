"""Standing: how a target fares, in words. Pure."""

from __future__ import annotations

from typing import Any

from oncebox.cli.show import stamp


def reason(one: dict[str, Any]) -> str | None:
    """What a person should know about its state."""
    if one["state"] == "blocked":
        return "nobody is this target (any more); its deliveries wait for it to come back"
    reasons: list[str] = [one["paused"]] if one["paused"] else []
    if one["stuck"]:
        reasons.append("none of its attempts returns")
    if one["down"] is not None:
        probe = one["down"]["next_probe_at"]
        then = "a probe is under way" if probe is None else f"next probe {stamp(probe)[11:]}"
        reasons.append(f"down since {stamp(one['down']['since'])}, {then}")
    if one["last_failure"] is not None and one["state"] != "ready":
        reasons.append(one["last_failure"]["error"] or one["last_failure"]["outcome"])
    return "; ".join(reasons) or None
