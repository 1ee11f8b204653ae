"""Replies: answers that are not the built-in receipt, one row for each distinct one, never changed."""

from __future__ import annotations

import hashlib
import sqlite3

from oncebox.model import Reply
from oncebox.store.statement import own

FIND = own("select reply from replies where digest = ?")
KEEP = own("insert into replies (digest, status, content_type, body) values (?, ?, ?, ?) returning reply")
READ = own("select status, content_type, body from replies where reply = ?")


def keep_reply(db: sqlite3.Connection, reply: Reply) -> int:
    """The number of a reply, written if it is new."""
    digest = hashlib.sha256(f"{reply.status}\n{reply.content_type}\n".encode() + reply.body).digest()
    found = (
        db.execute(FIND, (digest,)).fetchone()
        or db.execute(KEEP, (digest, reply.status, reply.content_type, reply.body)).fetchone()
    )
    return int(found[0])


def stored_reply(db: sqlite3.Connection, number: int | None) -> Reply | None:
    """The reply of that number; None for the built-in receipt."""
    if number is None:
        return None
    status, content_type, body = db.execute(READ, (number,)).fetchone()
    return Reply(status, content_type, body)
