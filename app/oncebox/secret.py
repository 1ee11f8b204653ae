"""Secrets: a reference in the file, a value that is never shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

REFERENCE = '"env:NAME", "file:path" or "plain:the text itself"'
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}


class Secret(msgspec.Struct, frozen=True):
    """Where a secret comes from and what it is. Only `ref` is ever printed; a plain: text is not part of it."""

    ref: str
    value: str

    def __repr__(self) -> str:
        return f"Secret({self.ref})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("ref", self.ref)]


class Lookup(msgspec.Struct, frozen=True):
    """Where references are looked up: `env_file` first, then `environ`; files relative to `folder`."""

    folder: Path
    environ: Mapping[str, str]
    env_file: Mapping[str, str] = {}
    env_file_name: str = ""

    def __repr__(self) -> str:
        return f"Lookup({self.folder})"

    def find(self, ref: str) -> Secret:
        """The secret behind a reference; raises ValueError (without any value in it) when unset, empty or blank."""
        scheme, colon, rest = ref.partition(":")
        if colon and scheme == "env":
            return Secret(ref, self._variable(rest))
        if colon and scheme == "file":
            return Secret(ref, self._file(rest))
        if colon and scheme == "plain":
            return Secret("plain:…", _filled(rest, "the text after plain:"))
        raise ValueError(f"a secret is written as {REFERENCE}; what stands there is none of them (not shown)")

    def _variable(self, name: str) -> str:
        if not re.fullmatch(_NAME, name):
            raise ValueError('after "env:" comes the name of an environment variable, such as "env:PARTNER_SECRET"')
        for values in (self.env_file, self.environ):
            if values.get(name, "").strip():
                return values[name]
        blank = name in self.env_file or name in self.environ
        where = (
            f"put {name}=… into {self.env_file_name} or" if self.env_file_name else "name an env_file that has it, or"
        )
        raise ValueError(
            f"environment variable {name} is {'empty' if blank else 'not set'}; {where} set it before the start"
        )

    def _file(self, name: str) -> str:
        if not name.strip():
            raise ValueError('after "file:" comes a path, such as "file:secrets/partner.txt"')
        path = self.folder / name
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise ValueError(f"the file {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"the file {path} is not UTF-8 text; store binary keys as hex or base64") from None
        text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
        return _filled(text, f"the file {path}")


def parse_env(text: str) -> dict[str, str]:
    """The variables of a `.env` file: `KEY=VALUE`, `export`, quotes (also over several lines), comments.

    Raises ValueError with the line's number, never its content.
    """
    values: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LINE.match(text, at)
        if not found:
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1} is not KEY=VALUE")
        if found["key"]:
            values[found["key"]] = _value(found)
        at = found.end()
    return values


_LINE = re.compile(
    rf"""[ \t]*(?:(?:export[ \t]+)?(?P<key>{_NAME})[ \t]*=[ \t]*
    (?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<bare>[^\r\n'"][^\r\n]*)?)[ \t]*)?
    (?:\#[^\r\n]*)?(?:\r?\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)


def _value(found: re.Match[str]) -> str:
    if found["single"] is not None:
        return found["single"]
    if found["double"] is not None:
        return re.sub(r"\\(.)", lambda pair: _ESCAPES.get(pair[1], pair[0]), found["double"], flags=re.DOTALL)
    bare = found["bare"] or ""
    return re.split(r"(?:^|[ \t])#", bare, maxsplit=1)[0].strip()


def _filled(value: str, what: str) -> str:
    if not value.strip():
        raise ValueError(f"{what} is empty; an empty secret would let anybody in")
    return value
