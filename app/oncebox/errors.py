"""Every error of the product: what is wrong, which thing, and what to do about it."""

from __future__ import annotations


class OnceboxError(Exception):
    """The root of all errors raised on purpose. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(OnceboxError):
    """The configuration cannot be used; the message names the key and the mend."""

    exit_code = 2


class HandlerError(OnceboxError):
    """A handler module cannot be loaded or its handlers clash."""

    exit_code = 2


class StoreError(OnceboxError):
    """The file cannot be opened or written."""


class Locked(StoreError):
    """Another process has the file open."""

    exit_code = 4


class SchemaTooNew(StoreError):
    """The file was written by a newer version."""

    exit_code = 5


class Unwritable(StoreError):
    """The file or its folder cannot be written."""

    exit_code = 6


class AddressInUse(OnceboxError):
    """The port is taken."""

    exit_code = 7


class NotReachable(OnceboxError):
    """No running server answers."""

    exit_code = 3


class Misused(OnceboxError):
    """What was asked for makes no sense as it was asked; nothing was done."""

    exit_code = 2


class Overloaded(StoreError):
    """The queue of accepts is full; the sender is told to come back. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StorageFull(Overloaded):
    """The disk is full or refuses writes."""


class IdConflict(StoreError):
    """The same id came with another body and the source says `on_conflict = "reject"`."""


class Rejected(OnceboxError):
    """A request is turned away. `slug` is the problem type's last part, `status` the HTTP status. On the command line
    400 is wrong usage."""

    def __init__(self, status: int, slug: str, detail: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail)
        self.exit_code = Misused.exit_code if status == 400 else OnceboxError.exit_code
        self.status = status
        self.slug = slug
        self.detail = detail
        self.headers = headers


class Retry(OnceboxError):
    """Raised by a handler: try again later, `after` a duration such as "5m" (None: by the schedule)."""

    def __init__(self, why: str = "", after: str | float | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.after = after


class Dead(OnceboxError):
    """Raised by a handler: never try this event again by itself; a person decides."""

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


class ForbiddenSQL(OnceboxError):
    """Handler SQL touches what belongs to the inbox, or tries to end its transaction."""


class Staged(OnceboxError):
    """The rows of a staged statement were asked for before the statement has run."""


class EmitError(OnceboxError):
    """An event cannot be emitted into that source."""
