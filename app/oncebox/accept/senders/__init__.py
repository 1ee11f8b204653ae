"""Senders: the rows of the table of presets. Data, no code paths."""

from __future__ import annotations
