"""Oncebox: what people who write handlers import."""

from oncebox.drain.handler import on, setup
from oncebox.drain.staging import StagedTransaction
from oncebox.errors import Dead, Retry
from oncebox.model import Event
from oncebox.store import Transaction

__all__ = ["Dead", "Event", "Retry", "StagedTransaction", "Transaction", "on", "setup"]
