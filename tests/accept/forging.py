"""Forged requests without end: signed with another secret, then bent, cut, repeated and filled with nonsense."""

from __future__ import annotations

import functools
import json
import random
import time
from urllib.parse import quote_from_bytes

from accept.signed import MENDED, NOW, URL, row, secret_for, verifier_of
from oncebox.accept.incoming import Incoming
from oncebox.accept.presets import PRESETS
from oncebox.accept.signature import Verifier, compile_verifier, parse_signature
from oncebox.errors import ConfigError, Rejected

MILLISECONDS = 0.005
NAMES = sorted(PRESETS)
PIECES = (
    *("t=", "v1=", "ts=", "h1=", "v1,", "sha256=", "v0=", "Bearer ", "Basic ", ",", ";", "|", "&", "=", ".", " ", ""),
    *("0" * 64, str(NOW), "9" * 30, "-1", "eyJhbGciOiJub25lIn0", "eyJhbGciOiJIUzI1NiJ9", "e30", "AAAA", "nan", "1e999"),
    *("é", "\x00", "\xff", "key=a,algorithm=HMAC_SHA256", "algorithm=HMAC_MD5", "2026-01-01T00:00:00Z"),
)
FORM = "application/x-www-form-urlencoded"


@functools.cache
def other_of(name: str) -> Verifier | None:
    """The same rule with a secret that the receiver does not have; None where a private key would be needed."""
    spec = parse_signature(MENDED.get(name, {}), "signature", base=row(name))
    return compile_verifier(spec, [secret_for(spec, f"not {name}")], name) if spec.scheme in ("hmac", "token") else None


def bent(dice: random.Random, text: str) -> str:
    """A text with a few accidents."""
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(text) + 1)
        piece = dice.choice(PIECES) if dice.random() < 0.7 else chr(dice.randrange(256))
        end = at + dice.choice((0, 0, 1, 2, len(text)))
        text = text[:at] + piece + text[end:]
    if dice.random() < 0.02:
        text = (text or "x") * (20_000 // len(text or "x"))
    return text if dice.random() < 0.9 else f"{text}{dice.choice((',', ';', ' ', '&'))}{text}"


def forged(dice: random.Random) -> tuple[str, Incoming]:
    """A sender's name and a request that it has never sent."""
    name = dice.choice(NAMES)
    headers = {"content-type": dice.choice(("application/json", FORM, "")), "webhook-id": "1", "svix-id": "1"}
    body = dice.choice((b"{}", b"a=1&b=2", b"", b"\xff\xfe", b'{"webhookTimestamp":1,"value":[{}]}'))
    other = other_of(name)
    signed: dict[str, str] = {}
    if other is not None:
        try:
            signed = other.sign(body, method="POST", url=URL, headers=headers, now=NOW)
        except (ConfigError, Rejected):
            signed = {}
    headers |= {header.lower(): bent(dice, value) for header, value in signed.items()}
    kind, _, place = row(name).sig.from_.partition(":")
    text = bent(dice, dice.choice(PIECES))
    if not signed and kind in ("header", "basic"):
        headers[(place or "authorization").lower()] = text
    elif kind == "form":
        body = b"bt_payload=x&token=a&timestamp=%d&%b=%b" % (
            NOW,
            place.encode(),
            quote_from_bytes(text.encode()).encode(),
        )
    elif kind.startswith("json"):
        fields = {"signature": text, "timestamp": str(NOW), "token": text}
        body = json.dumps({"signature": fields, "Signature": text, "value": [{"clientState": text}]}).encode()
    return name, Incoming("POST", URL, f"secret={quote_from_bytes(text.encode())}", headers, frozenset(), body, body, 0)


def forge(count: int, seed: int) -> list[str]:
    """What went wrong in so many attempts: accepted, another exception than a refusal, or too slow (three times)."""
    dice, wrong = random.Random(seed), list[str]()
    for number in range(count):
        name, incoming = forged(dice)
        if all(_judge(name, incoming, number, wrong) > MILLISECONDS for _ in range(3)):
            wrong.append(f"{number} {name}: slow")
    return wrong


def _judge(name: str, incoming: Incoming, number: int, wrong: list[str]) -> float:
    began = time.perf_counter()
    try:
        verifier_of(name).verify(incoming, NOW)
        wrong.append(f"{number} {name}: accepted {incoming}")
    except Rejected as why:
        if (why.status, why.slug) != (401, "bad-signature"):
            wrong.append(f"{number} {name}: {why.status} {why}")
    except Exception as error:  # noqa: BLE001  # any other exception is what is looked for
        wrong.append(f"{number} {name}: {error!r} of {incoming}")
    return time.perf_counter() - began
