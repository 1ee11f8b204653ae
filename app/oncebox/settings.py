"""Settings: every key of `litestar.toml`, its kind and its default. Durations are seconds, sizes bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from oncebox.duration import FOREVER
from oncebox.kind import (
    NAME,
    MinFree,
    MissingId,
    database,
    flag,
    free,
    matching,
    media,
    missing_id,
    network,
    number,
    path,
    pointer,
    rate,
    secret,
    size,
    span,
    text,
    url,
    whole,
    words,
)
from oncebox.secret import Secret
from oncebox.table import either, many, named, raw, table

ALERTS = ("failing", "dead", "paused", "silent", "backlog", "refused", "disk", "backup", "clock")
METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
MODULE = matching("", r"[^\W\d]\w*(?:\.[^\W\d]\w*)*", 'a module to import, such as "handlers" (without .py)')
BATCH = matching(
    'several events in one request: "array", "array:/pointer", "form:NAME" (a field that is such a list), "ndjson" or '
    '"cloudevents"',
    r"(?s)array(?::(?:/(?:[^~/]|~[01])*)+)?|form:.+|ndjson|cloudevents",
    '"array", "array:/pointer", "form:NAME", "ndjson" or "cloudevents"',
    *("array", "form", "ndjson", "cloudevents"),
)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests come in and how much of them is taken."""

    host: Annotated[str, text("the address to listen on")] = "127.0.0.1"
    port: Annotated[int, whole("the port to listen on; 0 takes any free one", 0, 65_535)] = 8640
    name: Annotated[str | None, text("this instance among others, in what targets are told; else random per file")] = (
        None
    )
    public_url: Annotated[str | None, url("what senders call: source URLs, links, the cookie, an allowed host")] = None
    max_body: Annotated[int, size("the largest body that is taken, decoded too")] = 5 << 20
    queue: Annotated[int, whole("requests that may wait for the disk; beyond it 503", 1, 1_000_000)] = 1000
    grace: Annotated[float, span("how long a stop waits for work in hand", least=0)] = 20.0
    trusted_proxies: Annotated[
        tuple[str, ...], many(network(""), "addresses or CIDR blocks whose forwarded headers are believed")
    ] = ()
    log: Annotated[str, words("how log lines look; auto is text on a terminal", "auto", "json", "text")] = "auto"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """Who may use the pages and `/api`."""

    secret: Annotated[Secret, secret("the token's text")]
    may: Annotated[str, words("what it may do", "read", "read-bodies", "admin")] = "admin"


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """The one file."""

    path: Annotated[Path, database("the SQLite file")] = Path("oncebox.db")
    durability: Annotated[str, words("normal may lose the last moments in a power cut", "full", "normal")] = "full"
    min_free: Annotated[MinFree, free("disk space that stays free: a share (at least 64 MiB) or a size")] = MinFree(
        0.05
    )
    checkpoint: Annotated[float, span("how often the write-ahead log is folded into the file")] = 30.0
    wal_max: Annotated[int, size("the write-ahead log's size; above it, a warning says so")] = 64 << 20


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long things are kept. What is owed is never pruned."""

    bodies: Annotated[float, span("bodies and headers of finished events", endless="forever")] = 30 * 86_400.0
    keys: Annotated[float, span("ids, never shorter than bodies", endless="forever")] = FOREVER
    attempts: Annotated[float, span("details of attempts", endless="forever")] = 30 * 86_400.0
    replies: Annotated[float, span("replies of operations, at least 24h", least=86_400, endless="forever")] = (
        30 * 86_400.0
    )
    max_size: Annotated[
        int | None, size("over it, bodies of finished events go first, oldest first", endless="unlimited")
    ] = 20 << 30
    floor: Annotated[float, span("but never younger than this", least=0)] = 3 * 86_400.0


class SourceRetention(msgspec.Struct, frozen=True, kw_only=True):
    """What one source keeps differently; None is as `[retention]` says."""

    bodies: Annotated[float | None, span("bodies and headers of finished events", endless="forever")] = None
    keys: Annotated[float | None, span("ids, never shorter than bodies", endless="forever")] = None
    attempts: Annotated[float | None, span("details of attempts", endless="forever")] = None


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of the file; off unless `dir` is set."""

    dir: Annotated[Path | None, path("the folder of the copies")] = None
    every: Annotated[float, span("how often", least=60)] = 86_400.0
    keep: Annotated[int, whole("how many", 1, 10_000)] = 7
    then: Annotated[tuple[str, ...], many(text(""), "a command for each finished copy, {file} is its path")] = ()


class Alerts(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told when something needs a person; off unless `url` or `command` is set."""

    url: Annotated[Secret | None, secret("where alerts are posted, a URL or env:NAME", literal_url=True)] = None
    command: Annotated[tuple[str, ...], many(text(""), "a command in its place, the alert on its standard input")] = ()
    format: Annotated[str, words("the form of what is posted", "slack", "text", "json")] = "slack"
    on: Annotated[tuple[str, ...], many(words("", *ALERTS), "what is told")] = ALERTS
    backlog: Annotated[float, span("how late deliveries may be before it is told")] = 600.0
    repeat: Annotated[float, span("how often the same alert is repeated")] = 21_600.0


class SourceReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a sender is answered in place of the receipt."""

    status: Annotated[int, whole("a 2xx status: another one makes senders retry", 200, 299)] = 200
    content_type: Annotated[str, media("its Content-Type")] = "text/plain; charset=utf-8"
    body: Annotated[str, matching("its body", r"(?s).*", "a text")] = ""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A sender. None is as the preset says, else the built-in way."""

    preset: Annotated[str | None, text("a known sender, such as stripe or github")] = None
    id: Annotated[
        str | tuple[str, ...] | None,
        either(text(""), "where the id is: header:NAME, body:/pointer, form:NAME, query:NAME, or a list"),
    ] = None
    type: Annotated[str | None, text("where the type is, written as for id")] = None
    time: Annotated[str | None, text("where the sender's time is, written as for id")] = None
    signature: Annotated[dict[str, object] | None, raw('how it signs: { scheme = "hmac", … }')] = None
    secrets: Annotated[tuple[Secret, ...], many(secret(""), "all are tried, so that rotation has no gap")] = ()
    unsigned: Annotated[bool, flag("true: anybody who knows the URL may send")] = False
    loopback_only: Annotated[bool, flag("true: only from this machine, not through a proxy")] = False
    internal: Annotated[bool, flag("true: only handlers emit into it; /in/NAME is 404")] = False
    url: Annotated[str | None, url("the URL the sender was given, where it signs its URL")] = None
    methods: Annotated[
        tuple[str, ...] | None, many(words("", *METHODS), "methods that are taken; else POST", least=1)
    ] = None
    batch: Annotated[str | None, BATCH] = None
    encoding: Annotated[
        str | None, words("the encoding of bodies that do not name theirs", "identity", "gzip", "deflate")
    ] = None
    reply: Annotated[SourceReply | None, table(SourceReply, "the answer in place of the receipt")] = None
    handshake: Annotated[str | None, text("the verification request that it answers, such as slack")] = None
    verify_token: Annotated[Secret | None, secret("what Meta repeats when it tries the URL out; it signs nothing")] = (
        None
    )
    on_missing_id: Annotated[MissingId, missing_id("reject, body-hash, body-hash:10m or unique")] = MissingId()
    on_conflict: Annotated[str, words("same id, other body", "keep-first", "reject")] = "keep-first"
    on_replay_of_dead: Annotated[str, words("the sender repeats a dead event", "revive", "keep")] = "revive"
    max_body: Annotated[int | None, size("as in [server], for this source")] = None
    silent: Annotated[float | None, span("alert when nothing came for so long")] = None
    retention: Annotated[SourceRetention, table(SourceRetention, "what it keeps differently")] = SourceRetention()


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed delivery is tried again."""

    attempts: Annotated[int, whole("tries before it is dead", 1, 1000)] = 12
    base: Annotated[float, span("the first wait")] = 5.0
    factor: Annotated[float, number("each wait is so many times the one before", 1, 100)] = 3.0
    ceiling: Annotated[float, span("the longest wait")] = 21_600.0
    give_up: Annotated[float, span("dead after so long without any answer", endless="never")] = FOREVER


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where events go: a URL or a command."""

    url: Annotated[str | None, url("where events are posted")] = None
    command: Annotated[
        tuple[str, ...], many(text(""), "or a command and its arguments, the body on standard input")
    ] = ()
    secret: Annotated[Secret | None, secret("signs what is posted (Standard Webhooks)")] = None
    timeout: Annotated[float, span("how long one try may take")] = 10.0
    concurrency: Annotated[int, whole("tries at the same time", 1, 1000)] = 4
    rate: Annotated[float | None, rate("at most so many, such as 50/s")] = None
    retry: Annotated[Backoff, table(Backoff, "when a failed delivery is tried again")] = Backoff()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Which events go to which target."""

    source: Annotated[str, text('a source, or a glob such as "shop-*"')]
    type: Annotated[str, text('a type, or a glob such as "invoice.*"')] = "*"
    where: Annotated[dict[str, object], raw("JSON pointer = value, all must hold", pointers=True)] = {}
    ordered_by: Annotated[
        str | None, pointer("a JSON pointer; events with the same value there go one after another")
    ] = None
    on_dead: Annotated[str, words("a dead event in order holds its key, or is passed", "hold", "skip")] = "hold"
    to: Annotated[
        tuple[str, ...], many(matching("", NAME, "a target's name"), "a target, or a list", least=1, single=True)
    ]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    handlers: Annotated[tuple[str, ...], many(MODULE, "modules, importable from the folder of this file")] = ()
    env_file: Annotated[Path | None, path("a file of KEY=VALUE lines, looked into before the environment")] = None
    server: Annotated[Server, table(Server, "where requests come in")] = Server()
    tokens: Annotated[
        dict[str, Token],
        named(table(Token, "", short="secret"), "who may use the pages; none: one is made at first start"),
    ] = {}
    store: Annotated[Store, table(Store, "the one file")] = Store()
    retention: Annotated[Retention, table(Retention, "how long things are kept")] = Retention()
    backup: Annotated[Backup, table(Backup, "copies of the file; off unless dir is set")] = Backup()
    alerts: Annotated[Alerts, table(Alerts, "who is told; off unless url or command is set")] = Alerts()
    sources: Annotated[dict[str, Source], named(table(Source, ""), "who sends")] = {}
    targets: Annotated[dict[str, Target], named(table(Target, ""), "where events go")] = {}
    routes: Annotated[tuple[Route, ...], many(table(Route, ""), "which events go to which target")] = ()
    callers: Annotated[dict[str, Secret], named(secret(""), "who may call /do")] = {}
