"""URL targets against a real receiver: what arrives, and what each kind of answer or silence comes to."""

from __future__ import annotations

import asyncio
import gzip
import socket
from pathlib import Path

import pytest

from drain.conftest import arrival
from drain.delivering import QUICK, delivering, posting, wall
from drain.receiver import CLOSE, Answer, Receiver, Request, receiving
from oncebox.drain.connections import Wire
from oncebox.drain.exchange import AT_ONCE
from oncebox.drain.retry import RetryPolicy

pytestmark = pytest.mark.anyio
ONCE = RetryPolicy(attempts=1, base=0.005, ceiling=0.01)
LATER = RetryPolicy(base=3600.0)


async def test_the_bytes_arrive_as_they_came_with_their_names(tmp_path: Path) -> None:
    body = gzip.compress(b'{"n": 9007199254740993}')
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        event = arrival("evt_1", at=wall(), body=body)
        headers = (*event.headers, ("x-shop-topic", "orders"), ("cookie", "no"), ("content-encoding", "gzip"))
        packed = {"encoding": "gzip", "decoded": gzip.decompress(body), "headers": headers}
        await inbox.store.accept([type(event)(**({f: getattr(event, f) for f in event.__struct_fields__} | packed))])
        await inbox.idle()
        ((request, _),) = receiver.log
        assert request.body == body
        assert request.headers["content-encoding"] == "gzip"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["x-shop-topic"] == "orders"
        assert request.headers["webhook-id"] == f"{inbox.store.instance}:demo:evt_1"
        assert request.headers["oncebox-attempt"] == "1"
        assert "cookie" not in request.headers


async def test_a_body_of_megabytes_arrives_whole(tmp_path: Path) -> None:
    body = bytes(range(256)) * 16_384
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        await inbox.receive("big", body=body)
        await inbox.idle()
        assert receiver.log[0][0].body == body


async def test_connections_are_used_again(tmp_path: Path) -> None:
    async with receiving() as receiver, delivering(tmp_path / "a.db", posting(receiver.url, concurrency=3)) as inbox:
        await inbox.receive(*(f"e{n}" for n in range(60)))
        await inbox.idle()
        assert receiver.connections <= 3
        assert receiver.most <= 3


async def test_a_connection_is_used_again_after_an_error_with_a_page_of_html(tmp_path: Path) -> None:
    async def refuse(_request: Request) -> Answer:
        return Answer(500, body=b"<p>" * 9000)

    async with receiving(refuse) as receiver:
        make = posting(receiver.url, concurrency=1, retry=ONCE)
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("a", "b", "c")
            await inbox.idle()
            assert receiver.connections == 1


async def first_outcome(tmp_path: Path, receiver: Receiver, **more: object) -> tuple[object, ...]:
    """(state, outcome, failures, error) after one attempt."""
    make = posting(receiver.url, **({"retry": LATER} | more))
    async with delivering(tmp_path / "a.db", make) as inbox:
        await inbox.receive("a")
        await inbox.drain.idle()
        (row,) = await inbox.rows("select state, outcome, failures, error from deliveries")
        return row


async def test_what_the_receiver_said_is_kept(tmp_path: Path) -> None:
    async def refuse(_request: Request) -> Answer:
        return Answer(500, {"Content-Type": "text/plain"}, b"no such customer" + b"." * 5000)

    async with receiving(refuse) as receiver:
        state, outcome, failures, error = await first_outcome(tmp_path, receiver)
    assert (state, outcome, failures) == ("pending", "error", 1)
    assert str(error).startswith("answered 500 Internal Server Error\n\nno such customer...")
    assert len(str(error)) < 600


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with receiving() as other:

        async def point(_request: Request) -> Answer:
            return Answer(307, {"Location": other.url})

        async with receiving(point) as receiver:
            row = await first_outcome(tmp_path, receiver)
        assert row[:3] == ("pending", "error", 1)
        assert f"it points to {other.url}" in str(row[3])
        assert not other.log


async def test_gone_is_dead_at_once(tmp_path: Path) -> None:
    async def gone(_request: Request) -> Answer:
        return Answer(410)

    async with receiving(gone) as receiver:
        assert (await first_outcome(tmp_path, receiver))[:2] == ("dead", "refused")


@pytest.mark.parametrize("charset", ["utf8mb4", "idna", "hex", "undefined", "\xff"])
async def test_the_charset_of_an_answer_changes_nothing_of_what_it_means(tmp_path: Path, charset: str) -> None:
    async def gone(_request: Request) -> Answer:
        return Answer(410, {"Content-Type": f"text/html; charset={charset}"}, "größe\xff".encode())

    async with receiving(gone) as receiver:
        row = await first_outcome(tmp_path, receiver)
    assert (*row[:2], row[3]) == ("dead", "refused", "answered 410 Gone\n\ngröße\xff")


async def test_an_answer_that_does_not_come_is_a_timeout_and_counts(tmp_path: Path) -> None:
    async def hang(_request: Request) -> Answer:
        await asyncio.sleep(60)
        return Answer()

    async with receiving(hang) as receiver:
        assert (await first_outcome(tmp_path, receiver, timeout=0.1))[:3] == ("pending", "timeout", 1)


async def test_a_closed_socket_counts_since_the_request_may_have_been_worked_through(tmp_path: Path) -> None:
    async def close(_request: Request) -> Answer:
        return CLOSE

    async with receiving(close) as receiver:
        row = await first_outcome(tmp_path, receiver)
    assert row[:3] == ("pending", "error", 1)
    assert str(row[3]).startswith("the connection broke before an answer came")


async def test_a_refused_connection_is_unreachable_and_does_not_count(tmp_path: Path) -> None:
    assert (await first_outcome(tmp_path, Receiver()))[:3] == ("pending", "unreachable", 0)


async def test_a_name_that_nobody_knows_is_unreachable(tmp_path: Path) -> None:
    async with delivering(tmp_path / "a.db", posting("http://nobody.invalid/", retry=LATER)) as inbox:
        await inbox.receive("a")
        await inbox.drain.idle()
        assert await inbox.states() == [("a", "pending", "unreachable", 0)]


async def test_a_receiver_that_speaks_no_tls_is_unreachable(tmp_path: Path) -> None:
    async with receiving() as receiver:
        make = posting(receiver.url.replace("http:", "https:"), retry=LATER)
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("a")
            await inbox.drain.idle()
            assert (await inbox.states())[0][1:] == ("pending", "unreachable", 0)


async def test_a_port_that_never_answers_is_unreachable_within_the_time_of_a_try(tmp_path: Path) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        make = posting(f"http://127.0.0.1:{full.getsockname()[1]}/", retry=LATER, timeout=0.4)
        async with delivering(tmp_path / "a.db", make) as inbox:
            await inbox.receive("a")
            await inbox.drain.idle()
            assert await inbox.states() == [("a", "pending", "unreachable", 0)]
            assert "no connection within 0.3 s" in await inbox.error("a")
        for one in waiting:
            one.close()


async def test_what_is_unreachable_for_too_long_is_given_up_if_so_configured(tmp_path: Path) -> None:
    retry = RetryPolicy(base=0.005, ceiling=0.01, give_up=0.05)
    async with delivering(tmp_path / "a.db", posting(Receiver().url, retry=retry)) as inbox:
        await inbox.receive("a")
        await inbox.idle()
        assert (await inbox.states())[0][:3] == ("a", "dead", "unreachable")


async def test_the_time_that_a_receiver_asks_for_is_obeyed(tmp_path: Path) -> None:
    async def busy(_request: Request) -> Answer:
        return Answer(429, {"Retry-After": "120"})

    async with receiving(busy) as receiver, delivering(tmp_path / "a.db", posting(receiver.url, retry=QUICK)) as inbox:
        await inbox.receive("a")
        await inbox.drain.idle()
        ((due,),) = await inbox.rows("select due from deliveries")
        assert 115e6 < due - wall() <= 120e6


async def test_a_2xx_is_done_even_if_its_body_never_ends(tmp_path: Path) -> None:
    async def endless(_request: Request) -> Answer:
        return Answer(200, {"Content-Length": "1000000"}, b"some of it")

    async with (
        receiving(endless) as receiver,
        delivering(tmp_path / "a.db", posting(receiver.url, timeout=0.5)) as inbox,
    ):
        await inbox.receive("a")
        await inbox.idle()
        assert await inbox.states() == [("a", "done", "ok", 0)]
        assert receiver.acknowledged == {"a": 1}


async def test_a_stop_gives_back_what_has_no_answer_and_keeps_what_has(tmp_path: Path) -> None:
    async def slow(request: Request) -> Answer:
        if request.id == "slow":
            await asyncio.sleep(60)
        return Answer(200, {"Content-Length": "1000000"}, b"more comes later")

    async with receiving(slow) as receiver:
        async with delivering(tmp_path / "a.db", posting(receiver.url), grace=0.0) as inbox:
            await inbox.receive("slow", "answered")
            await inbox.until(lambda: receiver.acknowledged == {"answered": 1})
        receiver.behave = Receiver().behave
        async with delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
            await inbox.idle()
            assert await inbox.rows("select count(*), sum(attempts), sum(failures) from deliveries") == [(2, 2, 0)]
    assert receiver.acknowledged == {"answered": 1, "slow": 1}


@pytest.mark.parametrize("size", [2, AT_ONCE + 1])
@pytest.mark.parametrize(("status", "state"), [(200, ("done", "ok")), (410, ("dead", "refused"))])
async def test_a_stop_in_the_moment_of_an_answer_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, status: int, state: tuple[str, str]
) -> None:
    async def says(_request: Request) -> Answer:
        return Answer(status, body=b"ok")

    async with receiving(says) as receiver, delivering(tmp_path / "a.db", posting(receiver.url)) as inbox:
        receive = Wire.data_received

        def and_stop(wire: Wire, data: bytes) -> None:
            receive(wire, data)
            for attempt in list(inbox.drain._shared.attempts):
                attempt.stop()

        monkeypatch.setattr(Wire, "data_received", and_stop)
        await inbox.receive("a", body=b"x" * size)
        await inbox.idle()
        assert [row[1:3] for row in await inbox.states()] == [state]
        assert [request.id for request, _ in receiver.log] == ["a"]
