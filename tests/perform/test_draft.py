"""The IETF draft "The Idempotency-Key HTTP Header Field", row by row of the README's table, against a real server."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from perform.calls import CALLERS, SECRET
from perform.calls import ask as text
from process.clocked import Clocked
from process.rig import Answer, Client, Server, parse, read_answer, until

pytestmark = pytest.mark.process

OTHER = "of-other"
MAKING = """
import asyncio
from pathlib import Path
from oncebox import Refuse, Reply, Request, Transaction, operation, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists made (id integer primary key, key text not null) strict")

def make(request: Request, db: Transaction) -> Reply:
    [(id,)] = db.execute("insert into made (key) values (?) returning id", (request.key,))
    return Reply(201, {"id": id})

@operation("orders")
def orders(request: Request, db: Transaction) -> Reply:
    return make(request, db)

@operation("patches", methods=("PATCH", "POST"))
def patches(request: Request, db: Transaction) -> Reply:
    return make(request, db)

@operation("votes", public=True)
def votes(request: Request, db: Transaction) -> Reply:
    return make(request, db)

@operation("declined")
def declined(request: Request, db: Transaction) -> Reply:
    make(request, db)
    return Reply(402, {"declined": True})

@operation("sold_out")
def sold_out(request: Request, db: Transaction) -> Reply:
    make(request, db)
    raise Refuse(409, "sold out")

@operation("fails")
def fails(request: Request, db: Transaction) -> Reply:
    make(request, db)
    if not Path("mended").exists():
        raise RuntimeError("broken")
    return Reply(201, {"key": request.key})

@operation("lost")
async def lost(request: Request) -> Reply:
    raise RuntimeError("after the call to the other side")

@operation("slow")
async def slow(request: Request) -> Reply:
    Path(f"began-{request.key}").touch()
    while not Path(f"end-{request.key}").exists():
        await asyncio.sleep(0.01)
    return Reply(201, {"key": request.key})
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all rows: each has its own keys."""
    config = f'{CALLERS}other = "plain:{OTHER}"\n'
    made = Server(tmp_path_factory.mktemp("draft") / "inbox", handlers=MAKING, config=config).start()
    yield made
    made.end()


def ask(
    server: Server, path: str, key: str | None, body: bytes = b"{}", *, method: str = "POST", token: str | None = SECRET
) -> Answer:
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    with Client(server) as client:
        return client.request(method, f"/do/{path}", body, headers)


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.problem


def made(server: Server, key: str) -> int:
    return int(server.rows("select count(*) from made where key = ?", key)[0][0])


def test_2_methods_that_are_not_idempotent_become_so(server: Server) -> None:
    for method in ("PATCH", "POST"):
        key = f"2-{method}"
        first, again = (ask(server, "patches", key, method=method) for _ in range(2))
        assert (first.status, again.replayed, again.body) == (201, True, first.body)
    assert refused(ask(server, "orders", "2-other", method="PATCH")) == (405, "bad-request")


@pytest.mark.parametrize(
    ("written", "other"),
    [('"2.1-a"', "2.1-a"), (r'"2.1-\"b"', '2.1-"b'), (r'"2.1-\\c"', r"2.1-\c"), (' "2.1 d" ', "2.1 d")],
)
def test_2_1_the_key_is_a_string_of_rfc_8941_or_bare(server: Server, written: str, other: str) -> None:
    first, again = ask(server, "orders", written), ask(server, "orders", other)
    assert (first.status, again.replayed, again.body) == (201, True, first.body)


@pytest.mark.parametrize("key", ["", '""', '"open', '"a"b', '"a";p=1', "ü", "a\tb", "k" * 256, '"' + "k" * 256 + '"'])
def test_2_1_what_is_no_key_is_400(server: Server, key: str) -> None:
    assert refused(ask(server, "orders", key)) == (400, "bad-key")


def test_2_1_two_keys_are_400(server: Server) -> None:
    head = f"POST /do/orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 0\r\n"
    got = server.raw(f"{head}Idempotency-Key: 2.1-x\r\nIdempotency-Key: 2.1-x\r\n\r\n".encode())
    assert got.startswith(b"HTTP/1.1 400 ")
    assert made(server, "2.1-x") == 0


def test_2_2_a_key_is_one_callers_own(server: Server) -> None:
    mine = ask(server, "orders", "2.2")
    theirs = ask(server, "orders", "2.2", b'{"other":"payload"}', token=OTHER)
    assert (mine.status, theirs.status) == (201, 201)
    assert mine.body != theirs.body
    assert made(server, "2.2") == 2


def test_2_2_a_key_is_one_requests_only_whichever_operation(server: Server) -> None:
    assert ask(server, "orders", "2.2-b").status == 201
    assert refused(ask(server, "patches", "2.2-b")) == (422, "key-conflict")


def test_2_3_a_reply_is_kept_for_30_days_and_then_the_key_is_free(tmp_path: Path) -> None:
    day, begin = 86_400, 1_796_000_000
    server = Clocked(tmp_path / "inbox", at=begin, handlers=MAKING, config=CALLERS)
    try:
        server.start()
        first = ask(server, "orders", "k")
        # Days that pass while the server runs are doubted, those between two runs are not.
        for days, replayed in ((29, True), (31, False)):
            assert server.stop() == 0
            server.set_clock(begin + days * day)
            server.start()
            again = ask(server, "orders", "k")
            assert (again.status, again.replayed, again.body == first.body) == (201, replayed, replayed)
    finally:
        server.end()


def test_2_4_json_is_compared_as_a_structure_and_numbers_as_they_are_written(server: Server) -> None:
    body = b'{"sku":"a","count":1,"\\u00fc":null}'
    first = ask(server, "orders", "2.4", body)
    again = ask(server, "orders", "2.4", '{ "ü": null, "count": 1, "sku": "\\u0061" }'.encode())
    assert (again.replayed, again.body) == (True, first.body)
    for other in (b'{"sku":"a","count":1.0,"\\u00fc":null}', b'{"sku":"a","count":"1","\\u00fc":null}', b"{}", b""):
        assert refused(ask(server, "orders", "2.4", other)) == (422, "key-conflict")


def test_2_4_method_path_and_query_count_too(server: Server) -> None:
    assert ask(server, "patches?a=1", "2.4-b").status == 201
    assert refused(ask(server, "patches?a=2", "2.4-b")) == (422, "key-conflict")
    assert refused(ask(server, "patches?a=1", "2.4-b", method="PATCH")) == (422, "key-conflict")


def test_2_5_the_specification_is_published(server: Server) -> None:
    schema = json.loads(server.get("/schema/openapi.json").body)
    for name in ("orders", "votes", "slow"):
        post = schema["paths"][f"/do/{name}"]["post"]
        [key] = [one for one in post["parameters"] if one["name"] == "Idempotency-Key"]
        assert key["required"] is True
        assert {"400", "409", "422"} < post["responses"].keys()


def test_2_6_a_first_request_is_performed_and_a_retry_gets_its_result(server: Server) -> None:
    first, again = ask(server, "orders", "2.6"), ask(server, "orders", "2.6")
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.replayed, again.body) == (201, True, first.body)
    assert made(server, "2.6") == 1


def test_2_6_an_error_that_the_operation_decided_is_a_result(server: Server) -> None:
    first, again = ask(server, "declined", "2.6-c"), ask(server, "declined", "2.6-c")
    assert (first.status, again.status, again.replayed, again.body) == (402, 402, True, first.body)
    assert made(server, "2.6-c") == 1


def test_2_6_a_failure_that_was_rolled_back_is_none(server: Server) -> None:
    assert refused(ask(server, "fails", "2.6-d")) == (500, "about:blank")
    assert made(server, "2.6-d") == 0
    (server.folder / "mended").touch()
    again = ask(server, "fails", "2.6-d")
    assert (again.status, again.replayed) == (201, False)
    (server.folder / "mended").unlink()
    assert ask(server, "fails", "2.6-d").replayed


def test_2_6_a_refusal_is_none_and_the_key_stays_free(server: Server) -> None:
    for _ in range(2):
        answer = ask(server, "sold_out", "2.6-e")
        assert (refused(answer), answer.replayed) == ((409, "about:blank"), False)
    assert made(server, "2.6-e") == 0


def test_2_6_a_concurrent_retry_waits_and_gets_the_result(server: Server) -> None:
    got: list[Answer] = []
    first = Thread(target=lambda: got.append(ask(server, "slow", "2.6-f")))
    first.start()
    until((server.folder / "began-2.6-f").exists, 5)
    with server.connect() as line:
        line.sendall(text("slow", "2.6-f"))
        assert refused(ask(server, "slow", "2.6-f", b"[]")) == (422, "key-conflict")
        (server.folder / "end-2.6-f").touch()
        twin = read_answer(line)
    first.join()
    assert got[0].status == 201
    assert twin.startswith(b"HTTP/1.1 201 ")
    assert b"idempotent-replayed: true" in twin
    assert twin.endswith(got[0].body)


@pytest.mark.torture
def test_2_7_a_retry_that_has_waited_ten_seconds_is_409_and_told_when_to_come_back(server: Server) -> None:
    first = Thread(target=lambda: ask(server, "slow", "2.7-a"))
    first.start()
    until((server.folder / "began-2.7-a").exists, 5)
    begin = time.monotonic()
    answer = ask(server, "slow", "2.7-a")
    assert 9.5 < time.monotonic() - begin < 12
    (server.folder / "end-2.7-a").touch()
    first.join()
    assert refused(answer) == (409, "in-progress")
    assert answer.headers["retry-after"] == "2"
    assert ask(server, "slow", "2.7-a").replayed


def test_2_7_a_retry_beyond_those_that_may_wait_is_409_at_once_and_told_when_to_come_back(server: Server) -> None:
    lines = [server.connect() for _ in range(34)]
    for line in lines:
        line.sendall(text("slow", "2.7-e"))
    # One of them is not among the 32 that wait, whichever it is.
    [ready], _, _ = select.select(lines, [], [], 5)
    answer = parse(read_answer(ready))
    assert refused(answer) == (409, "in-progress")
    assert answer.headers["retry-after"] == "2"
    (server.folder / "end-2.7-e").touch()
    assert {parse(read_answer(line)).status for line in lines if line is not ready} == {201}
    for line in lines:
        line.close()


def test_2_7_without_a_key_it_is_400_and_nothing_is_done(server: Server) -> None:
    before = server.rows("select count(*) from made")
    answer = ask(server, "orders", None)
    assert refused(answer) == (400, "bad-key")
    assert "Idempotency-Key" in json.loads(answer.body)["detail"]
    assert server.rows("select count(*) from made") == before


def test_2_7_another_payload_is_422_and_learns_nothing_of_the_first(server: Server) -> None:
    first = ask(server, "orders", "2.7-b")
    answer = ask(server, "orders", "2.7-b", b'{"other":1}')
    assert refused(answer) == (422, "key-conflict")
    assert not answer.replayed
    assert first.body not in answer.body
    assert ask(server, "orders", "2.7-b").body == first.body


def test_2_7_what_nobody_knows_is_409_until_somebody_decides(server: Server) -> None:
    assert refused(ask(server, "lost", "2.7-c")) == (500, "outcome-unknown")
    assert refused(ask(server, "lost", "2.7-c")) == (409, "outcome-unknown")


def test_2_7_other_errors_are_problems_too(server: Server) -> None:
    assert refused(ask(server, "orders", "2.7-d", token=None)) == (401, "unauthorized")
    assert refused(ask(server, "orders", "2.7-d", token="wrong")) == (401, "unauthorized")
    assert refused(ask(server, "nothing", "2.7-d")) == (404, "not-found")
    assert refused(ask(server, "orders", "2.7-d", b"x" * (6 << 20))) == (413, "too-large")
    assert ask(server, "orders", "2.7-d").status == 201


def test_5_who_has_no_token_gets_no_reply_whatever_key_is_guessed(server: Server) -> None:
    first = ask(server, "orders", "5")
    for token in (None, "wrong", OTHER):
        assert ask(server, "orders", "5", token=token).body != first.body
    assert ask(server, "votes", "5", token=None).body != first.body


def test_5_a_key_is_a_value_and_never_a_part_of_a_statement(server: Server) -> None:
    for key in ("5'; drop table made --", "5%", "5_", "5\\", '5" or 1=1'):
        assert ask(server, "orders", key).status == 201
        assert ask(server, "orders", key).replayed
        assert made(server, key) == 1
