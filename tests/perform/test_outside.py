"""Operations that act outside: async and blocking ones."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from oncebox import Refuse, Reply, Request, Retry, StagedTransaction, operation
from oncebox.errors import StorageFull
from oncebox.model import Performed
from oncebox.perform.operation import Operation
from perform.conftest import Box, OpenBox

pytestmark = pytest.mark.anyio


class Outside:
    """The world outside, and how often it was acted upon."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []
        self.go = asyncio.Event()
        self.entered = asyncio.Event()

    def act(self, request: Request) -> None:
        self.made.append((request.key, request.attempt))


@pytest.fixture
def outside(anyio_backend: str) -> Outside:
    return Outside()


def acting(outside: Outside, end: object = None, **more: Any) -> Operation[..., Any]:
    @operation("pay", **more)
    async def pay(request: Request) -> object:
        outside.act(request)
        outside.entered.set()
        await asyncio.sleep(0)
        if isinstance(end, BaseException):
            raise end
        return Reply(201, {"n": len(outside.made)}, headers={"Location": "/p"}) if end is None else end

    return pay


def blocking(outside: Outside, end: object = None, **more: Any) -> Operation[..., Any]:
    @operation("pay", **more)
    def pay(request: Request) -> object:
        outside.act(request)
        if isinstance(end, BaseException):
            raise end
        return Reply(201, {"n": len(outside.made)}, headers={"Location": "/p"}) if end is None else end

    return pay


def waiting(outside: Outside, **more: Any) -> Operation[..., Any]:
    @operation("pay", **more)
    async def pay(request: Request) -> Reply:
        outside.act(request)
        outside.entered.set()
        await outside.go.wait()
        return Reply(201, {"n": len(outside.made)})

    return pay


@pytest.mark.parametrize("kind", [acting, blocking])
async def test_what_acts_outside_acts_once_for_each_key(open_box: OpenBox, outside: Outside, kind: Any) -> None:
    async with open_box(kind(outside)) as box:
        first = await box.post("pay", {"a": 1, "b": 2})
        assert (first.status, first.replayed, first.headers["location"]) == (201, False, "/p")
        again = await box.post("pay", b'{"b":2,"a":1}')
        assert (again.replayed, again.facts) == (True, first.facts)
        conflict = await box.post("pay", {"a": 2})
        assert (conflict.status, conflict.slug) == (422, "key-conflict")
    async with open_box(kind(outside)) as box:
        assert (await box.post("pay", {"a": 1, "b": 2})).facts == first.facts
    assert outside.made == [("k1", 1)]


async def test_it_is_on_disk_before_it_starts(open_box: OpenBox, outside: Outside) -> None:
    async with open_box(waiting(outside)) as box:
        call = asyncio.ensure_future(box.post("pay", {}))
        await outside.entered.wait()
        assert await box.rows("select state, boot, attempts from operations") == [("running", box.store.boot, 1)]
        outside.go.set()
        assert (await call).status == 201
        assert await box.rows("select state, boot from operations") == [("done", None)]


@pytest.mark.parametrize("kind", [acting, blocking])
@pytest.mark.parametrize("end", [Refuse(402, "no money"), Retry("busy")])
async def test_the_author_may_say_that_nothing_happened_outside(
    open_box: OpenBox, outside: Outside, kind: Any, end: BaseException
) -> None:
    async with open_box(kind(outside, end)) as box:
        for _ in range(2):
            got = await box.post("pay", {})
            assert got.slug == "blank"
        assert await box.states() == []
        assert outside.made == [("k1", 1), ("k1", 1)]


ENDS = [
    ValueError("boom"),
    SystemExit(1),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    Reply(500),
    Reply(429),
    Reply(200, object()),
    Reply(99),
    "no reply",
]


@pytest.mark.parametrize("kind", [acting, blocking])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: repr(end)[:20])
async def test_what_fails_after_it_may_have_acted_is_unknown_and_not_free(
    open_box: OpenBox, outside: Outside, kind: Any, end: Any
) -> None:
    async with open_box(kind(outside, end)) as box:
        first = await box.post("pay", {})
        assert first.status == (end.status if isinstance(end, Reply) and end.status in (429, 500) else 500)
        for _ in range(2):
            got = await box.post("pay", {})
            assert (got.status, got.slug, got.replayed) == (409, "outcome-unknown", False)
        assert await box.states() == [("acme", "k1", "unknown", 1)]
        assert (await box.post("pay", {"other": 1})).slug == "key-conflict"
    async with open_box(kind(outside)) as box:
        assert (await box.post("pay", {})).slug == "outcome-unknown"
    assert len(outside.made) == 1


@pytest.mark.parametrize("kind", [acting, blocking])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: repr(end)[:20])
async def test_one_that_may_be_made_again_is_free_after_a_failure_and_knows_its_attempt(
    open_box: OpenBox, outside: Outside, kind: Any, end: Any
) -> None:
    async with open_box(kind(outside, end, retry_safe=True)) as box:
        await box.post("pay", {})
        await box.post("pay", {})
        assert await box.states() == [("acme", "k1", "failed", 2)]
        await box.post("pay", {"another": "request"})
        assert outside.made == [("k1", 1), ("k1", 2), ("k1", 1)]


async def test_a_person_decides_what_became_of_the_unknown(open_box: OpenBox, outside: Outside) -> None:
    from oncebox.model import Result

    async with open_box(acting(outside, ValueError("boom"))) as box:
        operations = box.store.operations
        for key in ("free", "done"):
            await box.post("pay", {}, key=key)
        assert await operations.resolve("acme", "free", None, "ada", box.clock())
        result = Result(201, (("content-type", "application/json"), ("location", "/p/7")), b'{"n":7}')
        assert await operations.resolve("acme", "done", result, "ada", box.clock())
        assert not await operations.resolve("acme", "done", result, "ada", box.clock())
        assert not await operations.resolve("acme", "none", None, "ada", box.clock())
        got = await box.post("pay", {}, key="done")
        assert (got.status, got.replayed, got.body, got.headers["location"]) == (201, True, b'{"n":7}', "/p/7")
        await box.post("pay", {}, key="free")
        assert outside.made == [("free", 1), ("done", 1), ("free", 1)]
        assert await box.rows("select who, what, detail from acts order by n") == [
            ("ada", "operation resolved", "acme free: free"),
            ("ada", "operation resolved", "acme done: done with 201"),
        ]


async def test_a_client_that_hangs_up_cancels_nothing(open_box: OpenBox, outside: Outside) -> None:
    async with open_box(waiting(outside)) as box:
        call = asyncio.ensure_future(box.post("pay", {}))
        await outside.entered.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        retry = asyncio.ensure_future(box.post("pay", {}))
        await asyncio.sleep(0)
        outside.go.set()
        assert (await retry).json == {"n": 1}
        assert outside.made == [("k1", 1)]


async def test_a_body_that_does_not_fit_frees_the_key(open_box: OpenBox, outside: Outside) -> None:
    import msgspec

    class Payment(msgspec.Struct):
        cents: int

    async def pay(payment: Payment) -> Reply:
        outside.made.append(("", payment.cents))
        return Reply(201)

    pay.__annotations__["payment"] = Payment
    async with open_box(operation("pay")(pay)) as box:
        got = await box.post("pay", {"cents": "many"})
        assert (got.status, got.slug) == (422, "bad-body")
        assert (await box.post("pay", {"cents": 5})).status == 201
        assert outside.made == [("", 5)]


# Time


async def test_one_that_takes_too_long_is_cancelled_and_unknown(open_box: OpenBox, outside: Outside) -> None:
    async with open_box(waiting(outside, timeout=0.05)) as box:
        got = await box.post("pay", {})
        assert (got.status, got.slug) == (504, "outcome-unknown")
        assert (await box.post("pay", {})).status == 409


async def test_one_that_does_not_end_keeps_its_key_until_it_has_returned(
    open_box: OpenBox, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncebox.perform import performer

    monkeypatch.setattr(performer, "LAST_MOMENT", 0.05)

    @operation("pay", timeout=0.05, retry_safe=True)
    async def deaf(request: Request) -> Reply:
        outside.act(request)
        while not outside.go.is_set():
            try:
                await outside.go.wait()
            except asyncio.CancelledError:
                continue
        return Reply(201)

    async with open_box(deaf) as box:
        assert (await box.post("pay", {})).status == 504
        assert (await box.post("pay", {})).status == 504
        assert outside.made == [("k1", 1)]
        assert await box.states() == [("acme", "k1", "running", 1)]
        outside.go.set()
        await box.performer.idle()
        assert (await box.post("pay", {})).status == 201
        assert outside.made == [("k1", 1), ("k1", 2)]


async def test_a_thread_that_is_late_keeps_its_key_until_it_has_returned(open_box: OpenBox, outside: Outside) -> None:
    go = threading.Event()

    @operation("pay", timeout=0.05)
    def late(request: Request) -> Reply:
        outside.act(request)
        go.wait(20)
        return Reply(201)

    async with open_box(late) as box:
        got = await box.post("pay", {})
        assert (got.status, got.slug) == (504, "outcome-unknown")
        assert await box.states() == [("acme", "k1", "unknown", 1)]
        go.set()
        await box.performer.idle()
        assert (await box.post("pay", {})).status == 409
        assert outside.made == [("k1", 1)]


async def test_no_more_run_at_once_than_are_let_in(open_box: OpenBox, outside: Outside) -> None:
    async with open_box(waiting(outside, concurrency=2)) as box:
        calls = [asyncio.ensure_future(box.post("pay", {}, key=f"k{n}")) for n in range(2)]
        await asyncio.sleep(0)
        got = await box.post("pay", {}, key="k3")
        assert (got.status, got.slug, got.headers["retry-after"]) == (503, "overloaded", "1")
        outside.go.set()
        await asyncio.gather(*calls)
        assert (await box.post("pay", {}, key="k3")).status == 201


# What is staged


def staging(outside: Outside, sql: str, *, retry_safe: bool = False) -> Operation[..., Any]:
    @operation("pay", retry_safe=retry_safe)
    async def pay(request: Request, db: StagedTransaction) -> Reply:
        outside.act(request)
        assert await db.read("select count(*) from orders") is not None
        db.execute("insert into orders (sku) values ('a')")
        db.emit("mail", id="receipt", body={"n": 1})
        db.execute(sql)
        return Reply(201, {"n": len(outside.made)})

    return pay


async def test_staged_writes_and_emits_commit_with_the_reply(open_box: OpenBox, outside: Outside) -> None:
    async with open_box(staging(outside, "insert into orders (sku) values ('b')")) as box:
        first = await box.post("pay", {})
        assert first.status == 201
        assert (await box.post("pay", {})).facts == first.facts
        assert await box.rows("select sku from orders order by 1") == [("a",), ("b",)]
        assert await box.rows("select e.id, e.parent, d.state from events e join deliveries d using (seq)") == [
            ("receipt", None, "pending")
        ]


@pytest.mark.parametrize(
    "sql", ["insert into orders (sku) values ('a')", "insert or rollback into orders (sku) values ('a')", "nonsense"]
)
@pytest.mark.parametrize(("retry_safe", "state"), [(False, "unknown"), (True, "failed")])
async def test_staged_writes_that_fail_leave_nothing_but_the_reason(
    open_box: OpenBox, outside: Outside, sql: str, retry_safe: bool, state: str
) -> None:
    async with open_box(staging(outside, sql, retry_safe=retry_safe)) as box:
        assert (await box.post("pay", {})).status == 500
        assert await box.rows("select * from orders") == []
        assert await box.rows("select * from events") == []
        [(found, why)] = await box.rows("select state, error from operations")
        assert found == state
        assert why.startswith("staged: ")
        again = await box.post("pay", {})
        assert again.status == (500 if retry_safe else 409)


async def test_nothing_is_staged_by_one_that_fails(open_box: OpenBox, outside: Outside) -> None:
    @operation("pay")
    async def pay(request: Request, db: StagedTransaction) -> Reply:
        db.execute("insert into orders (sku) values ('a')")
        return Reply(500)

    async with open_box(pay) as box:
        assert (await box.post("pay", {})).status == 500
        assert await box.rows("select * from orders") == []


# What a dead process leaves


async def left_running(open_box: OpenBox, outside: Outside, **more: Any) -> None:
    """The process is killed in the middle of a call."""
    async with open_box(waiting(outside, **more), killed=True) as box:
        call = asyncio.ensure_future(box.post("pay", {"a": 1}))
        await outside.entered.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_what_a_dead_process_left_running_is_unknown(open_box: OpenBox, outside: Outside) -> None:
    await left_running(open_box, outside)
    async with open_box(acting(outside)) as box:
        got = await box.post("pay", {"a": 1})
        assert (got.status, got.slug) == (409, "outcome-unknown")
        assert (await box.post("pay", {"a": 2})).slug == "key-conflict"
        assert await box.rows("select state, error from operations") == [
            ("unknown", "the process ended while it was running")
        ]
        assert outside.made == [("k1", 1)]


async def test_what_a_dead_process_left_running_runs_again_where_that_is_safe(
    open_box: OpenBox, outside: Outside
) -> None:
    await left_running(open_box, outside, retry_safe=True)
    async with open_box(acting(outside, retry_safe=True)) as box:
        assert (await box.post("pay", {"a": 2})).slug == "key-conflict"
        got = await box.post("pay", {"a": 1})
        assert (got.status, got.replayed) == (201, False)
        assert outside.made == [("k1", 1), ("k1", 2)]
        assert (await box.post("pay", {"a": 1})).facts == got.facts


async def test_what_was_running_of_an_operation_that_is_gone_is_unknown(open_box: OpenBox, outside: Outside) -> None:
    await left_running(open_box, outside, retry_safe=True)
    async with open_box() as box:
        assert await box.states() == [("acme", "k1", "unknown", 1)]


async def test_a_stop_waits_for_those_that_run(open_box: OpenBox, outside: Outside) -> None:
    async with open_box(waiting(outside)) as box:
        call = asyncio.ensure_future(box.post("pay", {}))
        await outside.entered.wait()
        stop = asyncio.ensure_future(box.performer.stop(10))
        await asyncio.sleep(0)
        late = await box.post("pay", {}, key="k2")
        assert (late.status, late.slug) == (503, "overloaded")
        twin = asyncio.ensure_future(box.post("pay", {}))
        outside.go.set()
        assert (await call).status == (await twin).status == 201
        await stop


@pytest.mark.parametrize(("retry_safe", "state"), [(False, "unknown"), (True, "failed")])
async def test_what_has_not_ended_when_the_grace_is_over_is_written_down(
    open_box: OpenBox, outside: Outside, retry_safe: bool, state: str
) -> None:
    async with open_box(waiting(outside, retry_safe=retry_safe)) as box:
        call = asyncio.ensure_future(box.post("pay", {}))
        await outside.entered.wait()
        await box.performer.stop(0)
        assert (await call).status == 503
        assert await box.states() == [("acme", "k1", state, 1)]


# A file that refuses


class Refusing:
    """The store's operations, on a disk that refuses some ends."""

    def __init__(self, box: Box, *errors: Exception) -> None:
        self._inner = box.store.operations
        self._errors = list(errors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def end(self, *args: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return await self._inner.end(*args)


async def test_a_reply_is_not_given_before_it_is_written_however_long_the_disk_refuses(
    open_box: OpenBox, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncebox.perform import performer

    monkeypatch.setattr(performer, "PAUSE", 0.01)
    async with open_box(acting(outside)) as box:
        box.store.operations = Refusing(box, *[StorageFull("full", 5)] * 3)  # type: ignore[assignment]
        first = await box.post("pay", {})
        assert (first.status, first.slug, first.headers["retry-after"]) == (503, "storage-full", "5")
        await box.performer.idle()
        got = await box.post("pay", {})
        assert (got.status, got.replayed, outside.made) == (201, True, [("k1", 1)])


async def test_a_reply_that_can_never_be_written_leaves_the_outcome_unknown(
    open_box: OpenBox, outside: Outside
) -> None:
    async with open_box(acting(outside)) as box:
        box.store.operations = Refusing(box, ValueError("too big"))  # type: ignore[assignment]
        assert (await box.post("pay", {})).status == 500
        assert (await box.post("pay", {})).slug == "outcome-unknown"


async def test_a_call_that_is_said_to_run_while_nobody_runs_it_is_unknown(open_box: OpenBox, outside: Outside) -> None:
    async with open_box(acting(outside, Refuse(400))) as box:
        box.store.operations = Refusing(box)  # type: ignore[assignment]

        async def nothing(*args: Any) -> None:
            return None

        box.store.operations.end = nothing  # type: ignore[method-assign, assignment]
        await box.post("pay", {})
        assert await box.states() == [("acme", "k1", "running", 1)]
        del box.store.operations.end
        got = await box.post("pay", {})
        assert (got.status, got.slug) == (409, "outcome-unknown")
        assert await box.states() == [("acme", "k1", "unknown", 1)]
        assert Performed("running").result is None
