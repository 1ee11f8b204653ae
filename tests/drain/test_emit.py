"""What handlers emit, and what they stage."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.drain.retry import RetryPolicy
from oncebox.drain.verdict import ERROR_BYTES, Verdict, bounded, described, of_error, settled
from oncebox.emit import emission
from oncebox.errors import Dead, EmitError, ForbiddenSQL, Retry, Staged
from oncebox.headers import Headers
from oncebox.model import Arrival, Claimed, Event, StagedWrites
from oncebox.store.staging import StagedTransaction

NOW = 1_796_000_000_000_000


def emitted(body: object = b"", id: Any = "1", **more: Any) -> Arrival:
    return emission("mail", id, more.get("type"), body, more.get("headers"), 7, NOW)


@pytest.mark.parametrize(
    ("body", "wire", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", "application/octet-stream"),
        (bytearray(b"x"), b"x", "application/octet-stream"),
        ("Grüße", "Grüße".encode(), "text/plain; charset=utf-8"),
        ({"n": 2**70, "t": "ü"}, b'{"n":1180591620717411303424,"t":"\xc3\xbc"}', "application/json"),
        ([1, None, True], b"[1,null,true]", "application/json"),
        (None, b"null", "application/json"),
    ],
)
def test_bodies_are_bytes_text_or_json(body: object, wire: bytes, content_type: str) -> None:
    arrival = emitted(body)
    assert (arrival.body, arrival.decoded, arrival.content_type) == (wire, wire, content_type)
    assert arrival.headers == (("content-type", content_type),)
    assert arrival.body_hash == sha256(wire).digest()
    assert (arrival.parent, arrival.received_at, arrival.verified) == (7, NOW, "emitted")


def test_headers_are_kept_and_may_say_the_content_type() -> None:
    arrival = emitted({"a": 1}, headers={"Content-Type": "application/cloudevents+json", "X-A": "b"})
    assert arrival.content_type == "application/cloudevents+json"
    assert arrival.headers == (("Content-Type", "application/cloudevents+json"), ("X-A", "b"))


@pytest.mark.parametrize(
    "id", ["", " a", "a ", "a\n", "a\x00b", "a\x7f", "\ud800", "x" * 1025, "ü" * 513, 7, None, b"a", "\u00a0a"]
)
def test_an_id_that_could_not_be_received_cannot_be_emitted(id: object) -> None:
    with pytest.raises(EmitError, match="emit into mail: the id"):
        emitted(id=id)
    if id is not None:
        with pytest.raises(EmitError, match="emit into mail: the type"):
            emitted(type=id)


@pytest.mark.parametrize("body", [object(), {"a": "\ud800"}, "\ud800", {1: {2, object()}}])
def test_a_body_that_cannot_be_written_is_refused(body: object) -> None:
    with pytest.raises(EmitError, match="the body of '1' cannot be written"):
        emitted(body)


@pytest.mark.parametrize(
    "headers",
    [{"a b": "c"}, {"": "c"}, {"a": "b\r\nc"}, {"a": "\x00"}, {"a": 1}, {"Authorization": "x"}, {"a": "\ud800"}],
)
def test_a_header_that_cannot_be_kept_is_refused(headers: dict[str, Any]) -> None:
    with pytest.raises(EmitError, match="the header"):
        emitted(headers=headers)


@given(st.text(max_size=40))
def test_every_id_is_taken_as_it_is_or_refused(id: str) -> None:
    try:
        arrival = emitted(id=id)
    except EmitError:
        return
    assert arrival.id == id
    assert 1 <= len(id.encode()) <= 1024


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@given(plain)
def test_plain_values_come_back_from_json(value: object) -> None:
    body = emitted(["around", value]).body
    assert json.loads(body) == ["around", value]


async def no_read(_query: Callable[[Any], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    raise AssertionError


def staging() -> StagedTransaction:
    return StagedTransaction(parent=7, read=no_read, now=lambda: NOW)


def test_statements_and_emits_are_staged_in_order_with_copies_of_their_parameters() -> None:
    db, params, blob = staging(), [1, "a"], bytearray(b"x")
    db.execute("insert 1", params)
    params.append(2)
    db.executemany("insert 2", ([n, blob] for n in range(2)))
    blob[0] = 0
    db.emit("mail", id="m", body="x")
    assert db.end() == StagedWrites(
        (
            ("insert 1", (1, "a")),
            ("insert 2", (0, b"x")),
            ("insert 2", (1, b"x")),
            emission("mail", "m", None, "x", None, 7, NOW),
        )
    )


@pytest.mark.parametrize(
    "look",
    [
        list,
        lambda r: r[0],
        len,
        bool,
        lambda r: [*r],
        lambda r: r == [],
        lambda r: r.rowcount,
        lambda r: 1 in r,
        lambda r: r + 1,
        int,
        sorted,
        lambda r: r > 0,
    ],
)
def test_what_a_staged_statement_gives_cannot_be_looked_at(look: Callable[[Any], object]) -> None:
    db = staging()
    for result in (db.execute("x"), db.executemany("x", []), db.emit("mail", id="1")):
        with pytest.raises(Staged, match=r"await db\.read"):
            look(result)
        assert "staged" in repr(result)


def test_what_no_database_could_take_is_refused_at_the_handlers_line() -> None:
    db = staging()
    for bad, error in ((2**63, OverflowError), ("\ud800", ValueError)):
        with pytest.raises(error):
            db.execute("x", (bad,))
    with pytest.raises(TypeError, match="not a dict"):
        db.execute("x", {"a": 1})  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(TypeError, match="SQL must be text"):
        db.execute(b"x")  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(EmitError):
        db.emit("mail", id="")
    assert db.end() == StagedWrites(())


def test_nothing_can_be_staged_after_the_end() -> None:
    db = staging()
    db.end()
    with pytest.raises(ForbiddenSQL, match="this function has ended"):
        db.execute("x")


def claimed(**more: Any) -> Claimed:
    event = Event(
        seq=3,
        source="demo",
        id="1",
        type=None,
        received_at=datetime.fromtimestamp(NOW / 1e6, UTC),
        headers=Headers(),
        content_type="",
        body=b"",
        raw=b"",
    )
    return Claimed(event, "t", more.pop("run", 1), more.pop("attempt", 1), more.pop("failures", 0))


def test_a_settle_names_the_attempt_and_what_follows() -> None:
    verdict = Verdict(outcome="error", error="boom")
    one = settled(
        claimed(run=2, attempt=4, failures=1), verdict, RetryPolicy(), started_at=NOW, duration=5, now=NOW + 5, jitter=0
    )
    assert (one.seq, one.target, one.run, one.attempt, one.state, one.failures) == (3, "t", 2, 4, "pending", 2)
    assert (one.due, one.error) == (NOW + 5 + 15_000_000, "boom")


def test_a_reason_inside_a_task_group_counts() -> None:
    group = BaseExceptionGroup("g", [ExceptionGroup("h", [Retry("later", after=60)])])
    assert of_error(group).after == 60
    assert of_error(ExceptionGroup("g", [Dead("no")])).dead
    assert not of_error(ExceptionGroup("g", [Dead("no"), ValueError()])).dead


def test_a_wait_that_is_not_understood_follows_the_schedule_and_says_so() -> None:
    for after in ("soon", -1, float("inf"), float("nan")):
        verdict = of_error(Retry("why", after=after))
        assert (verdict.outcome, verdict.after) == ("error", None)
        assert "after is not understood" in str(verdict.error)


def test_a_broken_constraint_in_a_rerun_is_dead_at_once() -> None:
    class IntegrityError(Exception):
        pass

    assert of_error(IntegrityError(), rerun=True).dead
    assert not of_error(IntegrityError()).dead


def test_an_error_is_shown_whatever_it_is() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(Mute()).startswith("oncebox") or "Mute" in described(Mute())
    assert len(described(ValueError("x" * 100_000)).encode()) <= ERROR_BYTES
    assert described(ValueError("\ud800\x00")).isascii()


@given(st.text(st.characters(exclude_categories=[]), max_size=300), st.integers(40, 200))
def test_bounded_text_fits_and_can_be_stored(text: str, limit: int) -> None:
    assert len(bounded(text * 3, limit).encode("utf-8")) <= limit
    assert "\x00" not in bounded(text, limit)
