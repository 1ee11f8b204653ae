"""Kinds: how one value of the configuration is read, what is allowed there, and how it is shown again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import TypeVar

import msgspec

from oncebox import duration
from oncebox.address import is_url, no_database
from oncebox.secret import Lookup, Secret
from oncebox.wording import nearest, shown, wrong

T = TypeVar("T", int, float)
_MEDIA = r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:[ \t]*;[ -~\t]*)?"
POLICIES = ("reject", "body-hash", "unique")
NAME = r"[a-z0-9][a-z0-9_-]{0,63}"
_POINTER = r"(?:/(?:[^~/]|~[01])*)+"


class Place(msgspec.Struct, frozen=True):
    """The key that is being read, where its secrets are looked up, and every problem found so far."""

    key: str
    lookup: Lookup
    problems: list[str]

    def below(self, name: str | int) -> Place:
        """The place of a member: `sources.demo`, `secrets[0]`."""
        step = f"[{name}]" if isinstance(name, int) else f".{name}" if self.key else name
        return Place(f"{self.key}{step}", self.lookup, self.problems)

    def report(self, problem: str) -> None:
        self.problems.append(f"{self.key}: {problem}" if self.key else problem)


class Kind(msgspec.Struct, frozen=True):
    """One kind of value. `read` raises ValueError with what is wrong and what is allowed.

    `shape` is the struct of the tables below a key, `form` how they are written there.
    """

    doc: str
    read: Callable[[object, Place], object]
    show: Callable[[object], str] = json.dumps
    shape: type[msgspec.Struct] | None = None
    form: str = "value"


class MinFree(msgspec.Struct, frozen=True):
    """The disk space that stays free: a share of the disk (at least 64 MiB) or a number of bytes."""

    share: float = 0.0
    size: int = 0

    def bytes_of(self, total: int) -> int:
        """The bytes to keep free on a disk of `total` bytes, never more than a twentieth of it."""
        wanted = self.size or max(int(total * self.share), 64 << 20)
        return min(wanted, total // 20)


class MissingId(msgspec.Struct, frozen=True):
    """What becomes of a request without an id: `policy` is reject, body-hash or unique; `window` in seconds."""

    policy: str = "reject"
    window: float | None = None


def matching(doc: str, pattern: str, allowed: str, *known: str) -> Kind:
    """A text of a fixed form; `known` are the words that it begins with."""

    def read(value: object, place: Place) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            word = value.partition(":")[0] if isinstance(value, str) else ""
            raise wrong(value, allowed + ("" if word in known else nearest(word, known)))
        return value

    return Kind(doc, read)


def text(doc: str) -> Kind:
    """Any text that is not blank."""
    return matching(doc, r"(?s).*\S.*", "a text")


def words(doc: str, *known: str) -> Kind:
    """One of a few words."""

    def read(value: object, place: Place) -> str:
        if isinstance(value, str) and value in known:
            return value
        hint = nearest(value, known) if isinstance(value, str) else ""
        raise wrong(value, "one of " + ", ".join(f'"{word}"' for word in known) + hint)

    return Kind(f"{doc} ({' | '.join(known)})", read)


def flag(doc: str) -> Kind:
    """True or false."""

    def read(value: object, place: Place) -> bool:
        if not isinstance(value, bool):
            raise wrong(value, "true or false (without quotes)")
        return value

    return Kind(doc, read)


def whole(doc: str, least: int, most: int) -> Kind:
    """A whole number within bounds."""

    def read(value: object, place: Place) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise wrong(value, f"a whole number from {least} to {most}")
        return value

    return Kind(doc, read)


def number(doc: str, least: float, most: float) -> Kind:
    """A number within bounds."""

    def read(value: object, place: Place) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise wrong(value, f"a number from {least:g} to {most:g}")
        return float(value)

    return Kind(doc, read, lambda value: f"{value:g}")


def span(doc: str, *, least: float = 0.001, endless: str = "") -> Kind:
    """A duration, in seconds; the word `endless` stands for infinity where there is one."""
    also = f', or "{endless}"' if endless else ""

    def read(value: object, place: Place) -> float:
        if endless and value == endless:
            return math.inf
        found = _measure(value, duration.seconds, duration.DURATION, also)
        if found < least:
            raise ValueError(f"{shown(value)} is too short; the shortest is {duration.show_seconds(least)}")
        return found

    return Kind(doc, read, lambda value: json.dumps(_span(value, endless)))


def _span(value: object, endless: str) -> str:
    assert isinstance(value, float)
    return endless if math.isinf(value) else duration.show_seconds(value)


def size(doc: str, *, endless: str = "") -> Kind:
    """A size in bytes, at least one; the word `endless` reads as None where there is one."""
    also = f', or "{endless}"' if endless else ""

    def read(value: object, place: Place) -> int | None:
        if endless and value == endless:
            return None
        found = _measure(value, duration.size, duration.SIZE, also)
        if found < 1:
            raise wrong(value, f"{duration.SIZE}{also}")
        return found

    return Kind(doc, read, lambda value: json.dumps(duration.show_size(value) if isinstance(value, int) else endless))


def _measure(value: object, parse: Callable[[str], T], allowed: str, also: str) -> T:
    if not isinstance(value, str):
        raise wrong(value, f"{allowed}{also}")
    try:
        return parse(value)
    except ValueError as error:
        raise ValueError(f"{error}{also}") from None


def rate(doc: str) -> Kind:
    """A rate, per second."""

    def read(value: object, place: Place) -> float:
        return _measure(value, duration.rate, duration.RATE, "")

    return Kind(doc, read)


def free(doc: str) -> Kind:
    """Disk space to keep free."""

    def read(value: object, place: Place) -> MinFree:
        found = re.fullmatch(r"([0-9]{1,2}(?:\.[0-9]{1,3})?)%", value) if isinstance(value, str) else None
        if found and 0 < float(found[1]) <= 50:
            return MinFree(share=float(found[1]) / 100)
        if isinstance(value, str) and not value.endswith("%"):
            return MinFree(size=duration.size(value))
        raise wrong(value, f'a share up to "50%", or {duration.SIZE}')

    return Kind(doc, read, lambda value: json.dumps(_free(value)))


def _free(value: object) -> str:
    assert isinstance(value, MinFree)
    return duration.show_size(value.size) if value.size else f"{value.share * 100:g}%"


def missing_id(doc: str) -> Kind:
    """The policy for requests without an id."""

    def read(value: object, place: Place) -> MissingId:
        policy, colon, window = value.partition(":") if isinstance(value, str) else ("", "", "")
        if policy == "body-hash" and colon:
            return MissingId(policy, duration.seconds(window))
        if policy not in POLICIES or colon:
            hint = "" if policy in POLICIES else nearest(policy, POLICIES)
            raise wrong(value, '"reject", "body-hash", "body-hash:10m" or "unique"' + hint)
        return MissingId(policy)

    return Kind(doc, read, lambda value: json.dumps(value.policy if isinstance(value, MissingId) else ""))


def pointer(doc: str) -> Kind:
    """A JSON pointer (RFC 6901) that points below the root."""
    return matching(doc, f"(?s){_POINTER}", 'a JSON pointer such as "/data/object/id"')


def path(doc: str) -> Kind:
    """A path; relative ones are meant from the folder of the file."""

    def read(value: object, place: Place) -> Path:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise wrong(value, "a path")
        return Path(value)

    return Kind(doc, read, lambda value: json.dumps(str(value)))


def database(doc: str) -> Kind:
    """The path of the one file."""
    known = path(doc)

    def read(value: object, place: Place) -> object:
        why = no_database(value) if isinstance(value, str) else ""
        if why:
            raise ValueError(why)
        return known.read(value, place)

    return Kind(doc, read, known.show)


def network(doc: str) -> Kind:
    """An address or a block of addresses."""

    def read(value: object, place: Place) -> str:
        try:
            return str(ip_network(value if isinstance(value, str) else ""))
        except ValueError:
            raise wrong(value, 'an address or CIDR block such as "10.0.0.1" or "10.0.0.0/8"') from None

    return Kind(doc, read)


def url(doc: str) -> Kind:
    """An http or https URL."""

    def read(value: object, place: Place) -> str:
        if not isinstance(value, str) or not is_url(value):
            raise wrong(value, "an http:// or https:// URL")
        return value

    return Kind(doc, read)


def media(doc: str) -> Kind:
    """A Content-Type, which ends as a header of an answer: printable ASCII on one line."""
    return matching(doc, f"(?a){_MEDIA}", 'a content type such as "application/json"')


def secret(doc: str, *, literal_url: bool = False) -> Kind:
    """A reference to a secret; the value itself is never part of a message."""

    def read(value: object, place: Place) -> Secret:
        if literal_url and isinstance(value, str) and re.fullmatch(r"https?://\S+", value):
            return Secret("as written", value)
        return place.lookup.find(value if isinstance(value, str) else "")

    return Kind(doc, read)
