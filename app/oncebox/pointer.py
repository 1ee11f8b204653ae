"""JSON pointers into bodies, with numbers kept as their exact digits. Pure."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from hashlib import sha256

import msgspec

from oncebox.model import charset

Path = tuple[str, ...]

# Longer keys are hashed: they are compared, not read.
KEY_BYTES = 255
BOM = b"\xef\xbb\xbf"

_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_index = re.compile(r"0|[1-9][0-9]{0,8}")


class Missing:
    """Nothing is there."""


class Number(str):
    """A JSON number as its digits."""

    __slots__ = ()


MISSING = Missing()
_decode = json.JSONDecoder(parse_int=Number, parse_float=Number).decode


def parse(pointer: str) -> Path:
    """The tokens of an RFC 6901 pointer; raises ValueError for text that is none."""
    if pointer and not pointer.startswith("/"):
        raise ValueError(f'"{pointer}" is not a JSON pointer; it must start with "/", such as "/data/id"')
    if re.search("~(?![01])", pointer):
        raise ValueError(f'"{pointer}" is not a JSON pointer; "~" is written "~0" and "/" within a name "~1"')
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


class Document:
    """A body that is read as JSON when it is first asked, and only as deep as it is asked."""

    def __init__(self, body: bytes, content_type: str = "application/json") -> None:
        self._body = body
        self._content_type = content_type
        self._opened: dict[Path, object] = {}

    def at(self, path: Path) -> object:
        """The value at a path (its numbers as Number), or MISSING if there is none or the body is not JSON."""
        try:
            raw = self._raw(path)
            return MISSING if raw is None else _decode(raw.decode("utf-8"))
        except (ValueError, RecursionError):
            return self._lenient(path)

    def _lenient(self, path: Path) -> object:
        """The same for JSON that only Python's reader takes: a lone surrogate anywhere, NaN."""
        try:
            found = _decode(_as_utf8(self._body, self._content_type).decode("utf-8"))
        except (ValueError, RecursionError):
            return MISSING
        for name in path:
            found = _inside(found, name)
        return found

    def _raw(self, path: Path) -> bytes | None:
        if not path:
            return _as_utf8(self._body, self._content_type)
        found = _inside(self._container(path[:-1]), path[-1])
        return bytes(found) if isinstance(found, msgspec.Raw) else None

    def _container(self, path: Path) -> object:
        if path not in self._opened:
            self._opened[path] = _open(self._raw(path))
        return self._opened[path]


def _inside(parent: object, name: str) -> object:
    if isinstance(parent, dict):
        return parent.get(name, MISSING)
    if isinstance(parent, list) and _index.fullmatch(name) and int(name) < len(parent):
        return parent[int(name)]
    return MISSING


def _as_utf8(body: bytes, content_type: str) -> bytes:
    encoding = charset(content_type) if "charset" in content_type.lower() else "utf-8"
    if encoding.lower() not in ("utf-8", "utf8"):
        body = body.decode(encoding).encode("utf-8")
    return body.removeprefix(BOM)


def _open(raw: bytes | None) -> object:
    start = b"" if raw is None else raw.lstrip(b" \t\r\n")[:1]
    if raw is None or start not in (b"{", b"["):
        return None
    return _object(raw) if start == b"{" else _array(raw)


def canonical(value: object) -> object:
    """A value of the configuration in the form that `equal` compares; raises ValueError for what JSON cannot say."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return Number(value)
    if isinstance(value, float) and value - value == 0:
        return Number(repr(value))
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: canonical(item) for name, item in value.items()}
    raise ValueError(f"{value!r} is not a JSON value")


def equal(found: object, wanted: object) -> bool:
    """JSON equality: 1 is 1.0, but neither "1" nor true. `wanted` comes from `canonical`."""
    if type(found) is not type(wanted):
        return False
    if isinstance(found, Number):
        return found == wanted or _same_number(found, str(wanted))
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(equal, found, wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(equal(found[name], wanted[name]) for name in wanted)
    return found == wanted


def _same_number(one: str, other: str) -> bool:
    try:
        return Decimal(one) == Decimal(other)
    except InvalidOperation:
        return False


def key_text(found: object) -> str | None:
    """A value as an order key: text and numbers as they are, null as no key. Unwieldy ones are hashed."""
    if found is None:
        return None
    text = found if isinstance(found, str) else json.dumps(found, sort_keys=True, separators=(",", ":"))
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > KEY_BYTES or not text.isprintable():
        return f"sha256:{sha256(data).hexdigest()}"
    return str(text)
