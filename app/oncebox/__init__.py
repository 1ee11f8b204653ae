"""Oncebox: what people who write handlers import."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oncebox.drain.handler import on, setup
from oncebox.errors import Dead, Retry
from oncebox.model import Event
from oncebox.perform.operation import operation
from oncebox.perform.reply import Refuse, Reply
from oncebox.perform.request import Request
from oncebox.store import Transaction
from oncebox.store.staging import StagedTransaction

if TYPE_CHECKING:  # it is imported late, see below
    from oncebox.plugin import OnceboxPlugin

__all__ = [
    "Dead",
    "Event",
    "OnceboxPlugin",
    "Refuse",
    "Reply",
    "Request",
    "Retry",
    "StagedTransaction",
    "Transaction",
    "on",
    "operation",
    "setup",
]


def __getattr__(name: str) -> Any:
    """`OnceboxPlugin` when it is asked for: it brings the web framework, which no command has to wait for."""
    if name == "OnceboxPlugin":
        return import_module("oncebox.plugin").OnceboxPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
