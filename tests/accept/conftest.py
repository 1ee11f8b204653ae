"""An inbox with a real store for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from accept.requests import NOW, Sender
from oncebox.accept.doors import compile_door
from oncebox.accept.inbox import Inbox
from oncebox.config import Source
from oncebox.store.sqlite import Options, open_store

OpenInbox = Callable[..., Awaitable[Sender]]


@pytest.fixture
async def open_inbox(tmp_path: Path) -> AsyncIterator[OpenInbox]:
    """Opens an inbox with these sources on a new file; what it gives sends requests to it."""
    async with AsyncExitStack() as stack:

        async def opened(sources: Mapping[str, Source], queue: int = 1000) -> Sender:
            options = Options(queue=queue)
            store = await stack.enter_async_context(open_store(tmp_path / "inbox.db", options=options))
            doors = {name: compile_door(name, source, 5 << 20) for name, source in sources.items()}
            return Sender(Inbox(doors, store, lambda: NOW), store)

        yield opened


@pytest.fixture
def source() -> Callable[..., Source]:
    """A source that takes unsigned events by the body's id, unless said otherwise."""

    def made(**keys: Any) -> Source:
        plain: dict[str, Any] = {} if keys.keys() & {"signature", "preset"} else {"id": "body:/id", "unsigned": True}
        return Source(**(plain | keys))

    return made
