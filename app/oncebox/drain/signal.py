"""Signals between the drain's tasks: a bell that wakes one loop, a pulse that many can watch, a gate; and two that end
together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


class Bell:
    """Wakes one loop. A ring that comes before the wait is not lost."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    @property
    def rung(self) -> bool:
        return self._event.is_set()

    def ring(self) -> None:
        """Wake the loop, now or as soon as it waits."""
        self._event.set()

    def quiet(self) -> None:
        """Forget earlier rings; what they told of is looked at after this."""
        self._event = anyio.Event()

    async def wait(self, seconds: float | None = None) -> None:
        """Until it rings, at most so many seconds."""
        with anyio.move_on_after(seconds):
            await self._event.wait()


class Pulse:
    """Tells everybody who waits that something has changed."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def beat(self) -> None:
        """Something has changed. Costs next to nothing while nobody waits."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def until(self, holds: Callable[[], bool]) -> None:
        """Until it holds; judged again at every beat, and true at the moment of return."""
        while not holds():
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()


class Gate:
    """Many may be inside at a time, or one alone."""

    def __init__(self, *, closed: bool = False) -> None:
        self.closed = closed
        self.inside = 0
        self._pulse = Pulse()

    async def enter(self) -> None:
        """Come in as one of many."""
        await self._pulse.until(lambda: not self.closed)
        self.inside += 1

    def leave(self) -> None:
        """Go out again."""
        self.inside -= 1
        self._pulse.beat()

    def join(self) -> None:
        """Come in with somebody who is inside, whatever the door."""
        self.inside += 1

    async def close(self) -> None:
        """Let nobody in, and wait until everybody has left."""
        self.closed = True
        await self._pulse.until(lambda: self.inside == 0)

    def reopen(self) -> None:
        """Let everybody in again."""
        self.closed = False
        self._pulse.beat()


async def together(one: Awaitable[T], other: Awaitable[T]) -> tuple[T, T]:
    """What two come to that run at once. What one raises is raised when the other has ended, too."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(first, BaseException):
        raise first
    if isinstance(second, BaseException):
        raise second
    return first, second
