"""What the rows of senders advise does what it says."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode

import pytest

from oncebox.accept.door import Door
from oncebox.accept.doors import compile_door
from oncebox.accept.incoming import Incoming
from oncebox.accept.presets import find_preset
from oncebox.config import MissingId, Source
from oncebox.errors import Rejected
from oncebox.secret import Secret

NOW = 1_796_000_000
JSON = "application/json"


def door_of(preset: str, **more: Any) -> Door:
    return compile_door("it", Source(preset=preset, secrets=(Secret("env:X", "s3cret"),), **more), 1 << 20)


def came(body: bytes, content_type: str = JSON) -> Incoming:
    headers = {"content-type": content_type}
    return Incoming("POST", "https://h.example/in/it", "", headers, frozenset(), body, body, NOW * 1_000_000)


def ids(door: Door, *requests: Incoming) -> list[str]:
    return [one.id for request in requests for one in door.arrivals(request, "hmac")]


def with_part(preset: str, part: str) -> tuple[str, ...]:
    id = find_preset(preset).id
    assert isinstance(id, tuple)
    assert part in find_preset(preset).note
    return (*id, part)


def test_clicks_on_two_links_in_one_second_can_be_told_apart() -> None:
    clicks = [{"_id": "m", "event": "click", "ts": 1, "url": url} for url in ("https://a.example", "https://b.example")]
    request = came(urlencode({"mandrill_events": json.dumps(clicks)}).encode(), "application/x-www-form-urlencoded")
    assert len(set(ids(door_of("mandrill"), request))) == 1
    apart = door_of("mandrill", id=with_part("mandrill", "hash:body"))
    assert len(set(ids(apart, request))) == 2
    assert ids(apart, request) == ids(apart, request)


def test_participants_who_come_in_the_same_millisecond_can_be_told_apart() -> None:
    def joins(user: str) -> Incoming:
        meeting = {"id": "94288349012", "participant": {"user_id": user}}
        event = {"event": "meeting.participant_joined", "event_ts": 1_796_000_000_001, "payload": {"object": meeting}}
        return came(json.dumps(event).encode())

    assert len(set(ids(door_of("zoom"), joins("1"), joins("2")))) == 1
    apart = door_of("zoom", id=with_part("zoom", "body:/payload/object/participant/user_id"))
    assert len(set(ids(apart, joins("1"), joins("2"), joins("2")))) == 2


@pytest.mark.parametrize("preset", ["mailgun", "mailgun_inbound"])
def test_a_repeat_with_the_time_of_its_first_try_can_be_taken(preset: str) -> None:
    ago = str(NOW - 8 * 3600)
    signed = {"timestamp": ago, "token": "a" * 50}
    signed["signature"] = hmac.new(b"s3cret", f"{ago}{'a' * 50}".encode(), hashlib.sha256).hexdigest()
    request = came(json.dumps({"signature": signed, "event-data": {"id": "e"}}).encode())
    if preset == "mailgun_inbound":
        request = came(urlencode(signed).encode(), "application/x-www-form-urlencoded")
    assert 'signature = { tolerance = "9h" }' in find_preset(preset).note
    with pytest.raises(Rejected, match="signed 28800 s ago"):
        door_of(preset, on_missing_id=MissingId("unique")).verify(request)
    patient = door_of(preset, on_missing_id=MissingId("unique"), signature={"tolerance": "9h"})
    assert patient.verify(request).scheme == "hmac"


def test_senders_without_id_and_time_say_what_a_captured_request_can_do() -> None:
    timeless = [name for name in ("braintree", "dropbox", "grafana", "meta") if "captured" in find_preset(name).note]
    assert timeless == ["braintree", "dropbox", "grafana", "meta"]
