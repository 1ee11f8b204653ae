"""Group: rows of several kinds for one statement, as the view `arriving` takes them."""

from __future__ import annotations

from oncebox.store.statement import rows

EVENT, DELIVERY, TOTAL, NUMBER = 1, 2, 3, 4
COLUMNS = 15
# One statement has at most 32,766 parameters.
ROWS = 2_000
SPARE = 100
PADDED = 8

HEAD = (
    "insert into arriving (kind, source, id, seq, type, at, size, body_hash, verified, parent, reply, headers, "
    "content_type, encoding, body)"
)


def arriving(count: int) -> str:
    """The statement that writes so many rows."""
    return rows(HEAD, COLUMNS, count)


def padded(values: list[object]) -> str:
    """The statement for these rows, rows of no kind added to a round count: few statements, each prepared once."""
    missing = -(len(values) // COLUMNS) % PADDED
    values += (0, *(None,) * (COLUMNS - 1)) * missing
    return arriving(len(values) // COLUMNS)
