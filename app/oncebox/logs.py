"""Logs: one line for each fact, as text for people or JSON for programs; never a secret, never a body."""

from __future__ import annotations

import json
import logging
import sys
import traceback

from oncebox.model import moment


class TextLines(logging.Formatter):
    """`2026-12-02T01:02:03.000004Z INFO oncebox.drain message`, a traceback on the lines below it."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{moment(int(record.created * 1_000_000))} {record.levelname} {record.name} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """The same as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": moment(int(record.created * 1_000_000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line)


def set_up_logs(form: str) -> None:
    """Log to standard error; `auto` is text on a terminal and JSON elsewhere."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines() if as_text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("oncebox").setLevel(logging.INFO)
