"""Messages: the bytes a sender signs, built from a template."""

from __future__ import annotations

import hashlib
import operator
import re
import zlib
from collections.abc import Callable
from hmac import compare_digest
from urllib.parse import urlsplit

from oncebox.accept.place import Pairs, Reading, compile_place, in_query, label
from oncebox.accept.spec import SignatureSpec, refusal
from oncebox.errors import ConfigError

Build = Callable[[Reading], bytes]

PARTS = (
    "{body} {ts} {url} {method} {form_sorted} {crc32} {configured_id} {sns} "
    "{header:NAME} {form:NAME} {query:NAME} {json:path}"
)
_PLACEHOLDER = re.compile(r"(\{[^{}]*\})")
_SNS_COMMON = ("Timestamp", "TopicArn", "Type")
_SNS_FIELDS = {
    "Notification": ("Message", "MessageId", "Subject", *_SNS_COMMON),
    "SubscriptionConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    "UnsubscribeConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}


def compile_message(spec: SignatureSpec, where: str) -> Build:
    """A builder of the signed bytes; raises ConfigError for a template that cannot be one."""
    body = operator.attrgetter("incoming.decoded" if spec.over == "decoded" else "incoming.body")
    if spec.message == "{body}":
        return body
    texts = [text for text in _PLACEHOLDER.split(spec.message) if text]
    parts = [
        _part(text, spec, where, body) if _PLACEHOLDER.fullmatch(text) else _literal(text, where) for text in texts
    ]
    if spec.message.endswith("{ts}.{body}") and len(parts) == 3:
        return lambda reading: b"%b.%b" % (reading.ts, body(reading))
    return lambda reading: b"".join([part(reading) for part in parts])


def unescaped(url: str, characters: str) -> str:
    """The URL with the percent escapes of these characters undone."""
    for character in characters:
        code = f"%{ord(character):02X}"
        url = url.replace(code, character).replace(code.lower(), character)
    return url


def url_spellings(url: str, *, ports: bool, unescape: str) -> list[str]:
    """The URL as it came, and what senders are known to sign instead: without or with its port, unescaped."""
    found = [url]
    if ports:
        found += _port_spellings(url)
    if unescape:
        found += [unescaped(text, unescape) for text in found]
    return list(dict.fromkeys(found))


def _port_spellings(url: str) -> list[str]:
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        return []
    bare = parts.netloc.rpartition(":")[0] if port else parts.netloc
    standard = {"https": 443, "http": 80}.get(parts.scheme)
    if not host or not standard:
        return []
    return [parts._replace(netloc=netloc).geturl() for netloc in (bare, f"{bare}:{standard}")]


def _literal(text: str, where: str) -> Build:
    if "{" in text or "}" in text:
        raise ConfigError(f'{where}.message: a brace stands alone in "{text}"; placeholders are {PARTS}')
    data = text.encode()
    return lambda _: data


def _part(text: str, spec: SignatureSpec, where: str, body: Build) -> Build:
    name = text[1:-1]
    if name == "form_sorted":
        return _form_sorted(spec.body_hash_query.encode())
    if name == "configured_id":
        return _configured(spec.configured_id, where)
    simple: dict[str, Build] = {
        "body": body,
        "ts": operator.attrgetter("ts"),
        "url": lambda reading: reading.url.encode("utf-8", "surrogatepass"),
        "method": lambda reading: reading.incoming.method.encode("latin-1", "replace"),
        "crc32": lambda reading: str(zlib.crc32(body(reading))).encode(),
        "sns": _sns,
    }
    if name in simple:
        return simple[name]
    if ":" not in name:
        raise ConfigError(f"{where}.message: {text} is no placeholder; there are {PARTS}")
    return _value(name, f"{where}.message")


def _value(name: str, where: str) -> Build:
    optional = name.startswith("json?:")
    place = name.replace("json?:", "json:", 1)
    find, missing = compile_place(place, where), f"{label(place)} is missing and takes part in the signature"
    if optional:
        return lambda reading: find(reading) or b""

    def build(reading: Reading) -> bytes:
        value = find(reading)
        if value is None:
            raise refusal(missing)
        return value

    return build


def _configured(text: str, where: str) -> Build:
    if not text:
        raise ConfigError(
            f"{where}.configured_id is not set; it is the id that the sender gave this webhook and is part of what it "
            'signs: signature = { configured_id = "…" }'
        )
    data = text.encode()
    return lambda _: data


def _form_sorted(hash_name: bytes) -> Build:
    def build(reading: Reading) -> bytes:
        # Cut by hand: the host may be any text, and what cannot be one would raise.
        query = reading.url.partition("?")[2].partition("#")[0]
        claimed = in_query(query, hash_name) if hash_name else None
        if claimed is not None:
            _same_hash(claimed, reading.incoming.decoded)
            return b""
        return b"".join([name + value for name, value in _distinct(reading.form())])

    return build


def _distinct(pairs: Pairs) -> Pairs:
    """Sorted by name and value; the same pair twice counts once, as the senders' own code has it."""
    return sorted(set(pairs))


def _same_hash(claimed: bytes, body: bytes) -> None:
    if not compare_digest(claimed.lower(), hashlib.sha256(body).hexdigest().encode()):
        raise refusal("the body is not the one whose hash is in the URL")


def _sns(reading: Reading) -> bytes:
    fields = reading.json()
    names = _SNS_FIELDS.get(str(fields.get("Type"))) if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or names is None:
        raise refusal(f"JSON field Type is none of {', '.join(_SNS_FIELDS)}")
    lines = []
    for name in names:
        value = fields.get(name)
        if isinstance(value, str):
            lines.append(f"{name}\n{value}\n")
        elif value is not None or name != "Subject":
            raise refusal(f"JSON field {name} is missing and takes part in the signature")
    return "".join(lines).encode("utf-8", "surrogatepass")
