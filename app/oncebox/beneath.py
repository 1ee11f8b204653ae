"""Beneath: the parts of uvicorn and httptools that the reading of requests is built on, and whether they are there."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import httptools

from oncebox.errors import OnceboxError

__all__ = ["HIGH_WATER_LIMIT", "STATUS_LINE", "FlowControl", "HttpToolsProtocol", "RequestResponseCycle", "missing"]


def unfit(what: str) -> OnceboxError:
    """The error of a start with releases that this one cannot be built on."""
    installed = ", ".join(f"{name} {version(name)}" for name in ("uvicorn", "httptools"))
    return OnceboxError(
        f"{installed}: these releases lack what oncebox {version('oncebox')} reads requests with ({what}); install the "
        "ones in scripts/requirements.txt, as scripts/serve does, or the lowest that pyproject.toml allows"
    )


try:
    from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
except ImportError as error:
    raise unfit(str(error)) from error

# What is called or overridden, and what an instance has from its start on.
METHODS: dict[type, tuple[str, ...]] = {
    HttpToolsProtocol: (
        *("connection_made", "connection_lost", "eof_received", "data_received", "pause_writing", "shutdown"),
        *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body", "on_message_complete"),
        *("on_response_complete", "timeout_keep_alive_handler", "_unset_keepalive_if_required"),
    ),
    RequestResponseCycle: ("send", "receive", "run_asgi"),
    FlowControl: ("pause_reading", "resume_reading", "pause_writing", "resume_writing"),
    httptools.HttpRequestParser: (
        *("feed_data", "should_keep_alive", "should_upgrade", "get_http_version", "get_method"),
    ),
}
FIELDS: dict[type, tuple[str, ...]] = {
    HttpToolsProtocol: (
        *("config", "app", "loop", "parser", "timeout_keep_alive", "timeout_keep_alive_task", "server_state"),
        *("transport", "flow", "client", "scheme", "pipeline", "headers", "expect_100_continue", "cycle"),
    ),
    RequestResponseCycle: (
        *("body", "more_body", "message_event", "disconnected", "keep_alive", "response_started"),
        *("response_complete", "on_response"),
    ),
    FlowControl: ("read_paused", "write_paused"),
}


def missing(methods: dict[type, tuple[str, ...]] = METHODS, fields: dict[type, tuple[str, ...]] = FIELDS) -> list[str]:
    """What is not there, by its full name."""
    lacking = [(kind, name) for kind, names in methods.items() for name in names if not hasattr(kind, name)]
    lacking += [(kind, name) for kind, names in fields.items() for name in _unset(kind, names)]
    return [f"{kind.__name__}.{name}" for kind, name in lacking]


def _unset(kind: Any, names: Iterable[str]) -> list[str]:
    """Those that the constructor does not set: nothing else says it without a connection."""
    known = kind.__init__.__code__.co_names
    return [name for name in names if name not in known]


if lacking := missing():
    raise unfit(", ".join(lacking))
