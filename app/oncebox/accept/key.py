"""Key: the id and the type of an event, by extractors that are compiled once. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import msgspec

from oncebox.accept.extractor import Extractor, Unfit, View, blank, compile_all
from oncebox.accept.incoming import Incoming
from oncebox.accept.pointer import Pointers, Unreadable, names
from oncebox.errors import ConfigError, Rejected
from oncebox.pointer import Path

Spec = str | Sequence[str]

MAX_ID_BYTES = 1024
MAX_TYPE = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_KEYS_SHOWN = 12
# A second look at the body, for its names and for what stands there, is worth its cost in small ones only.
_NAMES_BELOW = 64 << 10
_SIMPLE = re.compile(r"[!-~](?:[ -~]{0,1022}[!-~])?").fullmatch


class Found(msgspec.Struct, frozen=True):
    """What an event is called. Without an id, `missing` says why; `parts` are the sender's own values."""

    id: str | None
    type: str | None
    parts: tuple[str, ...] = ()
    missing: Rejected | None = None


class Fields:
    """The compiled extractors of one source."""

    def __init__(self, fields: Mapping[str, Spec | None]) -> None:
        paths: list[Path] = []
        self._composite = not isinstance(fields.get("id"), str | None)
        self._id = compile_all(_listed(fields.get("id")), paths)
        self._type = compile_all(_listed(fields.get("type")), paths)
        self._pointers = Pointers(paths) if paths else None
        # The sender's time is looked at by the signature; here it is only held to its grammar.
        self.time = compile_all(_listed(fields.get("time")), [])

    @property
    def tells_items_apart(self) -> bool:
        """Whether two items of one request can have different ids."""
        return any(extractor.in_body for extractor in self._id)

    def envelope(self, incoming: Incoming) -> View:
        """What the items of a batch have around them, read at most once for all of them."""
        return View(incoming, incoming.decoded, self._pointers)

    def read(
        self, incoming: Incoming, item: bytes | None = None, envelope: View | None = None, index: int = 0
    ) -> Found:
        """The id and type of a request, or of one item of its batch.

        Raises Rejected(400, "bad-id") for an id that is there and breaks the rules. Absent, null and "" are missing.
        """
        view = View(incoming, incoming.decoded if item is None else item, self._pointers, envelope, index)
        parts: list[str] = []
        for extractor in self._id:
            try:
                text = extractor.find(view)
            except Unfit as error:
                raise bad_id(f"the value {extractor.place} {error}") from None
            except Unreadable as error:
                return Found(None, self._type_of(view), missing=_unreadable(item, error))
            if text is None:
                return Found(None, self._type_of(view), missing=bad_id(_nothing(extractor, view, item)))
            if not _SIMPLE(text):
                check_id(text, extractor.place)
            parts.append(text)
        if not parts:
            return Found(None, self._type_of(view), missing=bad_id("this source has no rule for where the id is"))
        return Found(self._key(parts), self._type_of(view), tuple(parts))

    def _key(self, parts: list[str]) -> str:
        if not self._composite:
            return parts[0]
        key = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
        if len(key.encode()) > MAX_ID_BYTES:
            raise bad_id(f"the parts of the id have more than {MAX_ID_BYTES} bytes together")
        return key

    def _type_of(self, view: View) -> str | None:
        if len(self._type) == 1:
            return _type_text(self._type[0], view)
        found = [text for extractor in self._type if (text := _type_text(extractor, view))]
        return ".".join(found)[:MAX_TYPE] or None


def compile_fields(fields: Mapping[str, Spec | None], where: str = "id") -> Fields:
    """The extractors of `id`, `type` and `time`. A list is a composite: of an id the JSON array of its parts, of a
    type the parts that are there, joined by dots. Raises ConfigError naming `where`."""
    try:
        return Fields(fields)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _listed(spec: Spec | None) -> Sequence[str]:
    if spec is None:
        return ()
    return (spec,) if isinstance(spec, str) else spec


def bad_id(detail: str) -> Rejected:
    """The refusal of a request for its id."""
    return Rejected(400, "bad-id", detail)


def check_id(text: str, place: str) -> None:
    """Hold a text to the rules of ids: 1 to 1024 bytes of UTF-8, no control character, no blank at the ends.

    Raises Rejected(400, "bad-id"). Nothing is ever trimmed or cut.
    """
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise bad_id(f"the value {place} has a stray byte or a lone surrogate, which no UTF-8 text has") from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise bad_id(f"the value {place} has {size} bytes; an id has 1 to {MAX_ID_BYTES}")
    control = _CONTROL.search(text)
    if control:
        raise bad_id(f"the value {place} has the control character U+{ord(control[0]):04X}")
    if text != text.strip():
        raise bad_id(f"the value {place} starts or ends with a blank")


def _type_text(extractor: Extractor, view: View) -> str | None:
    """A type is a label: what cannot be stored in it is left out, and nothing is refused for it."""
    try:
        text = extractor.find(view)
    except (Unfit, Unreadable):
        return None
    if text is None or (text.isascii() and text.isprintable()):
        return text if text is None else text[:MAX_TYPE]
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")[:MAX_TYPE] or None


def _unreadable(item: bytes | None, error: Unreadable) -> Rejected:
    what = "the body" if item is None else "the item"
    return Rejected(400, "bad-body", f"{what} cannot be read for its id: {error}")


def _nothing(extractor: Extractor, view: View, item: bytes | None) -> str:
    stands = "" if extractor.in_body and len(view.data) > _NAMES_BELOW else blank(extractor.spec, view)
    words = f"no value {extractor.place}" + (f": it is {stands}" if stands else "")
    if not extractor.in_body:
        return words
    return f"{words}; the {'body' if item is None else 'item'} {_names(extractor, view)}"


def _names(extractor: Extractor, view: View) -> str:
    """The top-level names, so that whoever reads the refusal sees which one was meant."""
    if not view.data:
        return "is empty"
    if len(view.data) > _NAMES_BELOW:
        return f"has {len(view.data)} bytes"
    found = _form_names(view) if extractor.spec.startswith("form:") else names(view.data)
    if found is None:
        return "is not a JSON object" if not extractor.spec.startswith("form:") else "is not a form"
    shown = [ascii(name[:40])[1:-1] for name in found[:_KEYS_SHOWN]]
    more = f" and {len(found) - _KEYS_SHOWN} more" if len(found) > _KEYS_SHOWN else ""
    return f"has: {', '.join(shown)}{more}" if shown else "has no fields"


def _form_names(view: View) -> list[str] | None:
    try:
        return [name for name, _ in view.form()]
    except ValueError:
        return None
