"""Decision: what a person says an unknown call was answered with. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from oncebox.model import Result
from oncebox.perform.reply import KEPT, BadReply, Reply, dropped, encode, is_decided


def decide(status: int, body: bytes | str | None, headers: Mapping[str, str]) -> Result:
    """The reply that each repeat of the call gets from now on. Raises BadReply for one that is not kept as it is."""
    reply = Reply(status, body, headers)
    result = encode(reply)
    if not is_decided(result.status):
        raise BadReply(f"status: a reply with {status} is never kept; say how it ended, or free the key (as free)")
    lost = dropped(reply)
    if lost:
        raise BadReply(f"headers: {', '.join(lost)} would not be kept; a reply has {', '.join(KEPT)}")
    return result
