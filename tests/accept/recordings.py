"""The recorded requests of all senders, each with the source that its operator would configure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from accept.signed import MENDED, VECTORS
from oncebox.config import MissingId, Source
from oncebox.secret import Secret

# Sources with the same configuration would be one; each recorded request gets its own.
NAMES = {vector["id"]: f"v{number}" for number, vector in enumerate(VECTORS)}


def wanted(vector: Mapping[str, Any]) -> bool:
    """Whether a careful receiver takes it."""
    return bool(vector.get("strict_valid", vector["valid"]))


def body_of(vector: Mapping[str, Any]) -> bytes:
    if "body_base64" in vector:
        return base64.b64decode(vector["body_base64"])
    return str(vector["body"]).encode()


def secret_of(vector: Mapping[str, Any]) -> str:
    secret = vector["secret"]
    return str(secret if isinstance(secret, str) else secret["cert_pem"])


def signature_of(vector: Mapping[str, Any]) -> dict[str, object] | None:
    """What has to be added to the preset's signature."""
    if isinstance(vector["secret"], str):
        return MENDED.get(vector["provider"])
    return {"configured_id": vector["secret"]["configured_id"]} if "configured_id" in vector["secret"] else None


def source_of(vector: Mapping[str, Any], *, secret: str | None = None) -> Source:
    """The source. Some recorded bodies are no real events: what has no id of its sender's gets one."""
    return Source(
        preset=vector["provider"],
        secrets=(Secret("env:X", secret or secret_of(vector)),),
        signature=signature_of(vector),
        on_missing_id=MissingId("unique"),
    )
