"""What the senders' own libraries sign is accepted here, and what is signed here they accept."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlencode

import pytest
from _pytest.mark import ParameterSet

from oncebox.accept.doors import compile_door
from oncebox.accept.handshake import Ours, find_handshake
from oncebox.accept.incoming import Incoming
from oncebox.accept.presets import find_preset
from oncebox.accept.signature import Verifier, compile_verifier
from oncebox.accept.spec import SignatureSpec, Verified
from oncebox.config import MissingId, Source
from oncebox.errors import Rejected
from oncebox.secret import Secret
from senders import node
from senders.witnesses import FORM, URL, WITNESSES, Braintree, Headers, Witness


def those(which: Callable[[Witness], object]) -> list[ParameterSet]:
    """The names of witnesses, in order; who cannot be asked here is left out, and says so."""
    chosen = sorted(name for name, witness in WITNESSES.items() if which(witness))
    absent = [pytest.mark.skipif(bool(node.lacking()), reason=node.lacking())]
    return [pytest.param(name, marks=absent if WITNESSES[name].needs_node else []) for name in chosen]


LIBRARIES = those(lambda _: True)
SIGNING = those(lambda witness: witness.sign)
TIMED = those(lambda witness: witness.checks_time)


def rule(name: str) -> SignatureSpec:
    spec = find_preset(name).signature
    assert spec is not None
    return spec


def verifier(name: str) -> Verifier:
    return compile_verifier(rule(name), [WITNESSES[name].secret], name)


def received(body: bytes, headers: Headers, content_type: str) -> Incoming:
    lowered = {name.lower(): value for name, value in headers.items()} | {"content-type": content_type}
    now = int(time.time() * 1_000_000)
    return Incoming("POST", URL, URL.partition("?")[2], lowered, frozenset(), body, body, now)


def genuine(name: str, body: bytes, headers: Headers) -> bool:
    """Whether we take it, now."""
    try:
        found = verifier(name).verify(received(body, headers, WITNESSES[name].content_type), int(time.time()))
    except Rejected as why:
        return why.slug != "bad-signature"
    assert found == Verified(rule(name).scheme, 0)
    return True


def signed(name: str, body: bytes, *, ago: int = 0) -> Headers:
    """Signed by us, as the sender would."""
    witness = WITNESSES[name]
    given = {"Content-Type": witness.content_type, **witness.own}
    made = verifier(name).sign(body, method="POST", url=URL, headers=given, now=int(time.time()) - ago)
    return {**witness.own, **made}


def changed(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


@pytest.mark.parametrize("name", SIGNING)
def test_what_the_senders_library_signs_is_accepted(name: str) -> None:
    witness = WITNESSES[name]
    assert witness.sign is not None
    for body in witness.bodies:
        headers = witness.sign(body)
        assert genuine(name, body, headers), body
        assert not genuine(name, changed(body), headers), body


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_is_signed_here_the_senders_library_accepts(name: str) -> None:
    witness = WITNESSES[name]
    for body in witness.bodies:
        headers = signed(name, body)
        assert witness.judge(body, headers), body
        assert genuine(name, body, headers), body


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_library_and_we_refuse_the_same_changed_body(name: str) -> None:
    witness = WITNESSES[name]
    for body in witness.bodies:
        headers, other = signed(name, body), changed(body)
        assert not witness.judge(other, headers), body
        assert not genuine(name, other, headers), body


@pytest.mark.parametrize("name", TIMED)
def test_the_library_and_we_refuse_the_same_old_request(name: str) -> None:
    witness = WITNESSES[name]
    headers = signed(name, witness.bodies[0], ago=310)
    assert not witness.judge(witness.bodies[0], headers)
    assert not genuine(name, witness.bodies[0], headers)
    headers = signed(name, witness.bodies[0], ago=250)
    assert witness.judge(witness.bodies[0], headers)
    assert genuine(name, witness.bodies[0], headers)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_whole_source_takes_what_was_signed(name: str) -> None:
    witness = WITNESSES[name]
    source = Source(preset=name, secrets=(Secret("env:X", witness.secret),), on_missing_id=MissingId("unique"))
    door = compile_door("it", source, 1 << 20)
    body = witness.bodies[0]
    incoming = received(body, signed(name, body), witness.content_type)
    verified = door.verify(incoming)
    assert all(arrival.verified == verified.scheme for arrival in door.arrivals(incoming, verified.scheme))


def test_braintrees_own_requests_are_accepted_and_changed_ones_are_not() -> None:
    sender = Braintree()
    check = compile_verifier(rule("braintree"), [f"{sender.public}|{sender.private}"], "braintree")
    fields = sender.notification()
    now = int(time.time())
    assert check.verify(received(urlencode(fields).encode(), {}, FORM), now) == Verified("hmac", 0)
    for name in fields:
        other = fields | {name: fields[name].replace("a", "b", 1)}
        with pytest.raises(Rejected):
            check.verify(received(urlencode(other).encode(), {}, FORM), now)


def test_braintrees_challenge_gets_the_answer_that_its_library_gives() -> None:
    sender = Braintree()
    challenge = "20f9f8ed05f77439fe955c977e4c8a53"
    incoming = Incoming("GET", URL, f"bt_challenge={challenge}", {}, frozenset(), b"", b"", 0)
    ours = Ours((f"{sender.public}|{sender.private}",), lambda _: Verified("hmac", 0))
    reply = find_handshake("braintree")(incoming, ours)
    assert reply is not None
    assert reply.body.decode() == sender.answer(challenge)
