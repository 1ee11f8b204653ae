"""Body: what a sender sends, read as everybody's bodies are."""

from __future__ import annotations

from oncebox.body import ClientGone, Message, Receive, decode, read_body, too_large

__all__ = ["ClientGone", "Message", "Receive", "decode", "read_body", "too_large"]
