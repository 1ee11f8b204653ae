"""Operations: the calls that were made, how each ended, and deciding how unknown ones did."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import msgspec
from litestar import MediaType, Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from oncebox.clock import wall_clock
from oncebox.errors import OnceboxError, Rejected
from oncebox.model import Result, moment
from oncebox.operate import filters
from oncebox.operate.api import ADMIN, READ, given_in, text
from oncebox.operate.look import Query, not_found
from oncebox.operate.shape import Json, call_json, reply_json
from oncebox.store.callbook import STATES, Wanted, call_of, list_calls, reply_of
from oncebox.store.operations import Known, find_call
from oncebox.store.queries import generation
from oncebox.store.sqlite import SQLiteStore

CALLS = ("state", "operation", "caller", "limit", "cursor")
_WRITTEN = (
    'say {"caller": "acme", "key": "k1", "as": "free"}, or "as": "done" with "reply": {"status": 201, "headers": {}, '
    '"body": {"id": 1}}'
)

Asked = Request[Any, Any, Any]
# Status, body and headers as they are kept. Raises OnceboxError for what is not.
Decide = Callable[[int, bytes | str | None, Mapping[str, str]], Result]


class GivenReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a repeat is answered: the body is a text, any other JSON as it is written, or bytes in base64."""

    status: int
    headers: dict[str, str] = {}
    body: msgspec.Raw = msgspec.Raw()
    body_base64: str | None = None


class Resolution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing happened and the key is free, or it was done and this is its reply."""

    caller: str
    key: str
    as_: Literal["free", "done"] = msgspec.field(name="as")
    reply: GivenReply | None = None


def calls(given: Mapping[str, str]) -> Query:
    """A piece of the list of calls."""
    filters.check_names(given, CALLS)
    state = given.get("state")
    if state is not None and state not in STATES:
        close = get_close_matches(state, STATES, 1)
        hint = f'did you mean "{close[0]}"?' if close else f"known are: {', '.join(STATES)}"
        raise filters.bad_request(f'state: "{state[:60]}" is none; {hint}')
    limit = filters.read_limit(given)

    def query(db: Any) -> Json:
        made = generation(db)
        before = filters.read_cursor(given, made)
        wanted = Wanted(
            limit=limit,
            before=filters.LARGEST if before is None else before,
            state=state,
            operation=given.get("operation"),
            caller=given.get("caller"),
        )
        page = list_calls(db, wanted)
        return {"operations": [call_json(one) for one in page.calls], "next": filters.write_cursor(made, page.next)}

    return query


def call(n: int, *, bodies: bool) -> Query:
    """One call by its number in lists; the reply's body only if `bodies`."""

    def query(db: Any) -> Json:
        found = call_of(db, n) if 0 < n <= filters.LARGEST else None
        if found is None:
            raise not_found(f"there is no call {n}; what has ended is forgotten after retention.replies")
        return _whole(db, found, bodies=bodies)

    return query


def lookup(given: Mapping[str, str], *, bodies: bool) -> Query:
    """One call by what its caller knows of it; the caller is empty for one without a name."""
    filters.check_names(given, ("caller", "key"))
    if not given.get("key"):
        raise filters.bad_request("key: is missing; ask with caller and key (no caller: one without a name)")
    caller, key = given.get("caller", ""), given["key"]

    def query(db: Any) -> Json:
        found = find_call(db, caller, key)
        if found is None:
            raise _nobody(caller, key)
        return _whole(db, found, bodies=bodies)

    return query


def _whole(db: Any, found: Known, *, bodies: bool) -> Json:
    reply = reply_of(db, found.n)
    return {**call_json(found), "reply": None if reply is None else reply_json(reply, bodies=bodies)}


def read_resolution(body: bytes) -> Resolution:
    """What somebody has decided. Raises Rejected 400."""
    try:
        read = msgspec.json.decode(body, type=Resolution)
    except msgspec.DecodeError as error:
        raise filters.bad_request(f"{error}; {_WRITTEN}") from None
    if (read.reply is None) == (read.as_ == "done"):
        what = "what was it answered?" if read.as_ == "done" else "a free key has none"
        raise filters.bad_request(f'reply: {what}; it goes with "as": "done" and with nothing else')
    return read


def reply_in(given: GivenReply, decide: Decide) -> Result:
    """The reply as it is kept. Raises Rejected 400 for one that cannot be."""
    headers, body = dict(given.headers), bytes(given.body)
    try:
        if given.body_base64 is not None:
            if body:
                raise filters.bad_request("reply: has a body and a body_base64; say one of them")
            return decide(given.status, base64.b64decode(given.body_base64, validate=True), headers)
        if body in (b"", b"null"):
            return decide(given.status, None, headers)
        if body.startswith(b'"'):
            return decide(given.status, msgspec.json.decode(body, type=str), headers)
        if not any(name.lower() == "content-type" for name in headers):
            headers["content-type"] = "application/json"
        return decide(given.status, body, headers)
    except (binascii.Error, msgspec.DecodeError) as error:
        raise filters.bad_request(f"reply: its body cannot be read: {error}") from None
    except Rejected:
        raise
    except OnceboxError as error:
        raise filters.bad_request(f"reply: {error}") from None


async def resolve(store: SQLiteStore, resolution: Resolution, decide: Decide, *, who: str, now: int) -> Json:
    """Somebody decides of an unknown call.

    Raises Rejected: 400 for a reply that cannot be kept, 404 where there is no such call, 409 where it is not unknown.
    """
    caller, key = resolution.caller, resolution.key
    result = None if resolution.reply is None else reply_in(resolution.reply, decide)
    if not await store.operations.resolve(caller, key, result, who, now):
        found = await store.read(lambda db: find_call(db, caller, key))
        raise _nobody(caller, key) if found is None else _known(found)
    status = None if result is None else result.status
    return {"caller": caller, "key": key, "resolved": resolution.as_, "status": status, "at": moment(now), "who": who}


def _nobody(caller: str, key: str) -> Rejected:
    whose = f'caller "{caller[:80]}"' if caller else "callers without a name"
    return not_found(
        f'there is no call of {whose} with key "{key[:80]}": it never came, its key is free (refused, rolled back, or '
        "resolved so), or it is older than retention.replies; `oncebox operations` lists what is known"
    )


def _known(found: Known) -> Rejected:
    if found.state == "running":
        return Rejected(409, "in-progress", "this call is running; there is nothing to decide until it has ended")
    ended = {
        "done": f"it is done and answers {found.status} to each repeat",
        "failed": "it failed and may be sent again",
        "interrupted": "it was interrupted and may be sent again",
    }
    told = ended.get(found.state, f"it is {found.state}")
    return Rejected(409, "bad-request", f"nothing is to be decided of this call: {told}; only what is unknown is")


def create_operation_routes(
    store: SQLiteStore, decide: Decide, now: Callable[[], int] = wall_clock
) -> list[HTTPRouteHandler]:
    """The routes below /api about calls of operations; `decide` judges the reply that somebody gives."""

    @get("/operations", opt=READ, summary="Calls of operations, newest first")
    async def listed(
        request: Asked,
        state_: Annotated[str | None, text("state", ", ".join(STATES))] = None,
        operation: Annotated[str | None, text("operation", "exactly this operation")] = None,
        caller: Annotated[str | None, text("caller", "exactly this caller; empty: those without a name")] = None,
        limit: Annotated[str | None, text("limit", "1 to 500, else 50")] = None,
        cursor: Annotated[str | None, text("cursor", '"next" of the page before')] = None,
    ) -> Response[Any]:
        return _json(await store.read(calls(given_in(request))))

    @get("/operations/{n:int}", opt=READ, summary="One call and its reply; the body for those who may read bodies")
    async def one(request: Asked, n: FromPath[int]) -> Response[Any]:
        filters.check_names(given_in(request), ())
        return _json(await store.read(call(n, bodies=_reads_bodies(request))))

    @get("/operations/lookup", opt=READ, summary="One call by its caller and key")
    async def found(
        request: Asked,
        caller: Annotated[str | None, text("caller", "the caller; empty: one without a name")] = None,
        key: Annotated[str | None, text("key", "the Idempotency-Key, without quotes")] = None,
    ) -> Response[Any]:
        return _json(await store.read(lookup(given_in(request), bodies=_reads_bodies(request))))

    @post("/operations/resolve", opt=ADMIN, summary="Decide how an unknown call ended", status_code=200)
    async def resolved(request: Asked) -> Response[Any]:
        resolution = read_resolution(await request.body())
        who = str(request.state["who"].name)
        return _json(await resolve(store, resolution, decide, who=who, now=now()))

    return [listed, one, found, resolved]


def _reads_bodies(request: Asked) -> bool:
    return bool(request.state["who"].can("read-bodies"))


def _json(value: Json) -> Response[Any]:
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(value), media_type=MediaType.JSON, headers=headers)
