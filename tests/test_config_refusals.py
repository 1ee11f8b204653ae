"""What a configuration is refused for, word by word."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncebox.config import load
from oncebox.errors import ConfigError

DEMO = '[sources.demo]\nid = "header:X"\nunsigned = true\n'
ALERTS = '"failing", "dead", "paused", "silent", "backlog", "refused", "disk", "backup", "clock"'
POLICIES = '"reject", "body-hash", "body-hash:10m" or "unique"'
METHODS = '"POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"'
MEDIA = 'a content type such as "application/json"'
BATCHES = '"array", "array:/pointer", "form:NAME", "ndjson" or "cloudevents"'
UNSENDABLE = (
    "what plain:… holds cannot be sent in a header (not shown); use letters, digits and signs of ASCII on one line, "
    "such as what `openssl rand -base64 32` prints"
)
REFERENCE = '"env:NAME", "file:path" or "plain:the text itself"'
SIGN = '[sources.s]\nid = "header:X"\nsignature = { scheme = "hmac" }\n'


def refusal(folder: Path, text: str | bytes, **given: object) -> str:
    file = folder / "litestar.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load(file, environ={}, overrides=given)
    message = str(caught.value)
    assert message.startswith(str(file))
    return message.removeprefix(str(file)).removeprefix(": ")


ONE = [
    ("port = 1", 'port: unknown key; did you mean "server.port"?'),
    ("[alerts]\nurl = 'plain:x'", "alerts.url: what plain:… holds is not an http:// or https:// URL (not shown)"),
    ("[server]\nprot = 1", 'server.prot: unknown key; did you mean "port"?'),
    ("[source.x]", 'source: unknown key; did you mean "sources"?'),
    ("[sources.s]\nid='header:X'\nunsigned=true\nsecret='x'", 'sources.s.secret: unknown key; did you mean "secrets"?'),
    (
        "[backup]\nzebra = 1",
        "backup.zebra: unknown key; known here: dir, every, keep, then",
    ),
    ('[server]\nport = "8640"', 'server.port: "8640" is not a whole number from 0 to 65535'),
    ("[server]\nport = true", "server.port: true is not a whole number from 0 to 65535"),
    ("[server]\nport = 65536", "server.port: 65536 is not a whole number from 0 to 65535"),
    ("[server]\nport = 86.5", "server.port: 86.5 is not a whole number from 0 to 65535"),
    ('[server]\nhost = " "', 'server.host: " " is not a text'),
    ("[server]\nhost = 2026-01-01", "server.host: 2026-01-01 is not a text"),
    ("server = 1", "server: 1 is not a table"),
    ('[server]\nmax_body = "5MB"', 'server.max_body: "5MB" is not a size such as "512B", "64KiB", "5MiB" or "20GiB"'),
    ("[server]\nmax_body = 5", 'server.max_body: 5 is not a size such as "512B", "64KiB", "5MiB" or "20GiB"'),
    ('[server]\nmax_body = "0B"', 'server.max_body: "0B" is not a size such as "512B", "64KiB", "5MiB" or "20GiB"'),
    (
        '[server]\ngrace = "20"',
        'server.grace: "20" is not a duration such as "250ms", "5s", "10m", "1h" or "30d"',
    ),
    ("[server]\ngrace = 20", 'server.grace: 20 is not a duration such as "250ms", "5s", "10m", "1h" or "30d"'),
    ('[store]\ncheckpoint = "0s"', 'store.checkpoint: "0s" is too short; the shortest is 1ms'),
    ('[server]\nlog = "jsn"', 'server.log: "jsn" is not one of "auto", "json", "text"; did you mean "json"?'),
    ('[server]\npublic_url = "hooks.example"', 'server.public_url: "hooks.example" is not an http:// or https:// URL'),
    (
        '[targets.t]\nurl = "ftp://me:hunter2@x"',
        'targets.t.url: "ftp://…@x" is not an http:// or https:// URL',
    ),
    (
        '[server]\ntrusted_proxies = ["10.0.0.1/8"]',
        'server.trusted_proxies[0]: "10.0.0.1/8" is not an address or CIDR block such as "10.0.0.1" or "10.0.0.0/8"',
    ),
    ('[server]\ntrusted_proxies = "::1"', "server.trusted_proxies: a list in [ ] is needed, not a text"),
    ('handlers = "handlers"', "handlers: a list in [ ] is needed, not a text"),
    (
        'handlers = ["handlers/x"]',
        'handlers[0]: "handlers/x" is not a module to import, such as "handlers" (without .py)',
    ),
    ('[store]\ndurability = "none"', 'store.durability: "none" is not one of "full", "normal"'),
    (
        '[store]\nmin_free = "0%"',
        'store.min_free: "0%" is not a share up to "50%", or a size such as "512B", "64KiB", "5MiB" or "20GiB"',
    ),
    (
        '[retention]\nbodies = "always"',
        'retention.bodies: "always" is not a duration such as "250ms", "5s", "10m", "1h" or "30d", or "forever"',
    ),
    ('[retention]\nkeys = "1d"', "retention.keys: ids are kept at least as long as bodies; raise keys or lower bodies"),
    ('[retention]\nreplies = "1h"', 'retention.replies: "1h" is too short; the shortest is 1d'),
    (
        "[alerts]\non = ['deaf']",
        f'alerts.on[0]: "deaf" is not one of {ALERTS}; did you mean "dead"?',
    ),
    ('[alerts]\nurl = "https://x"\ncommand = ["mail"]', "alerts: set one of url and command, not both"),
    (
        "[sources.Bad]\nid = 'header:X'\nunsigned = true",
        'sources: "Bad" is not a name: 1 to 64 of a-z, 0-9, _ and -, not starting with _ or -',
    ),
    (
        "[sources.s]\nunsigned = true",
        "sources.s: nothing says where the id of a request is; set id, preset, on_missing_id or internal = true",
    ),
    (
        '[sources.s]\nid = "header:X"',
        "sources.s: nothing proves who sends; set signature (or preset) and secrets, or say unsigned = true",
    ),
    (SIGN, 'sources.s: secrets is missing; set secrets = ["env:NAME"], or say unsigned = true'),
    (
        '[sources.s]\npreset = "github"',
        'sources.s: secrets is missing; set secrets = ["env:NAME"], or say unsigned = true',
    ),
    (
        "[sources.s]\nid = 'header:X'\nsecrets = ['plain:x']",
        "sources.s: nothing says how the secrets are used; set signature or preset",
    ),
    (
        f"{SIGN}unsigned = true\nsecrets = ['plain:x']",
        "sources.s: unsigned = true checks nothing, yet there are secrets; leave out one of the two",
    ),
    (
        "[sources.s]\ninternal = true\npreset = 'github'",
        "sources.s: internal = true takes nothing from outside; leave out preset, signature, secrets, unsigned",
    ),
    (
        f'{DEMO}on_missing_id = "body_hash"',
        f'sources.demo.on_missing_id: "body_hash" is not {POLICIES}; did you mean "body-hash"?',
    ),
    (
        f'{DEMO}on_missing_id = "unique:10m"',
        'sources.demo.on_missing_id: "unique:10m" is not "reject", "body-hash", "body-hash:10m" or "unique"',
    ),
    (
        f'{DEMO}on_missing_id = "body-hash:10"',
        'sources.demo.on_missing_id: "10" is not a duration such as "250ms", "5s", "10m", "1h" or "30d"',
    ),
    (
        f'{DEMO}batch = "arrays"',
        f'sources.demo.batch: "arrays" is not {BATCHES}; did you mean "array"?',
    ),
    (
        f'{DEMO}methods = ["PSOT"]',
        f'sources.demo.methods[0]: "PSOT" is not one of {METHODS}; did you mean "POST"?',
    ),
    (
        f'{DEMO}on_missing_id = "uniqe"',
        f'sources.demo.on_missing_id: "uniqe" is not {POLICIES}; did you mean "unique"?',
    ),
    (
        f'{DEMO}on_missing_id = "rejct"',
        f'sources.demo.on_missing_id: "rejct" is not {POLICIES}; did you mean "reject"?',
    ),
    (
        f"{DEMO}reply = {{ status = 204, body = 'x' }}",
        "sources.demo.reply: an answer with status 204 has no body (RFC 9110); leave out body, or say status = 200",
    ),
    (
        f"{DEMO}reply = {{ status = 205, body = 'x' }}",
        "sources.demo.reply: an answer with status 205 has no body (RFC 9110); leave out body, or say status = 200",
    ),
    *(
        (f"{DEMO}reply = {{ content_type = {written} }}", f"sources.demo.reply.content_type: {written} is not {MEDIA}")
        for written in (r'"text/plain\r\nset-cookie: a=b"', r'"text/plain\n"', '"text/plain; é"', '"text"', '" "')
    ),
    ("[store]\npath = ':memory:'", 'store.path: ":memory:" would keep nothing; name a file, such as "oncebox.db"'),
    ("[store]\npath = ''", 'store.path: "" is not a path'),
    (
        "[store]\npath = 'FILE:x.db?mode=memory'",
        'store.path: a "file:" URI is not understood here; write the plain path, such as "oncebox.db"',
    ),
    (
        "[store]\npath = 'data/'",
        'store.path: "data/" is a folder; name the file in it, such as "data/oncebox.db"',
    ),
    ("[store]\npath = '.'", 'store.path: "." is a folder; name the file in it, such as "./oncebox.db"'),
    (
        "[tokens]\na = 'plain:two\\nlines'".replace("'", '"'),
        f"tokens.a: {UNSENDABLE}",
    ),
    (
        "[callers]\na = 'plain:é'",
        f"callers.a: {UNSENDABLE}",
    ),
    *(
        (f"[targets.t]\nurl = {written}", f"targets.t.url: {written} is not an http:// or https:// URL")
        for written in ('"http://a b"', r'"http://a/\u0001"', '"http://a:99999/"', '"http://:80/"', '"http://[::1/"')
    ),
    (f"{DEMO}reply = {{ status = 500 }}", "sources.demo.reply.status: 500 is not a whole number from 200 to 299"),
    (
        "[sources.s]\npreset = 'meta'\nsecrets = ['plain:x', 'plain:y']\nverify_token = 'plain:y'",
        "sources.s: verify_token is one of the secrets; it travels in URLs and must not be able to sign",
    ),
    (f"{DEMO}unsined = 1", 'sources.demo.unsined: unknown key; did you mean "unsigned"?'),
    (
        "[sources.s]\nid = []\nunsigned = true",
        "sources.s.id: the list is empty; put something into it or leave the key out",
    ),
    (
        '[sources.s]\nid = "header:X"\nunsigned = "yes"',
        'sources.s.unsigned: "yes" is not true or false (without quotes)',
    ),
    (
        f'{DEMO}retention = {{ keys = "1d" }}',
        "sources.demo.retention: ids are kept at least as long as bodies; raise keys or lower bodies",
    ),
    ("[targets.t]", "targets.t: set exactly one of url and command"),
    ('[targets.t]\nurl = "http://x"\ncommand = ["y"]', "targets.t: set exactly one of url and command"),
    (
        '[targets.t]\nurl = "http://x"\nrate = "50"',
        'targets.t.rate: "50" is not a rate such as "50/s", "600/m" or "1000/h"',
    ),
    (
        '[targets.t]\nurl = "http://x"\nretry = { factor = 0.5 }',
        "targets.t.retry.factor: 0.5 is not a number from 1 to 100",
    ),
    (
        '[routes]\nto = "x"',
        "routes: a list in [ ] is needed (a table of a list is headed by [[ ]]), not a table",
    ),
    ('[[routes]]\nto = "x"', 'routes[0]: "source" is missing: a source, or a glob such as "shop-*"'),
    (
        '[[routes]]\nsource = "x"\nto = ["a", "B"]',
        """routes[0].to[1]: "B" is not a target's name""",
    ),
    (
        '[[routes]]\nsource = "x"\nto = "a"\nordered_by = "data"',
        'routes[0].ordered_by: "data" is not a JSON pointer such as "/data/object/id"',
    ),
    (
        '[[routes]]\nsource = "x"\nto = "a"\nwhere = { livemode = true }',
        'routes[0].where: "livemode" is not a JSON pointer such as "/data/object/id"',
    ),
    (
        '[[routes]]\nsource = "x"\nto = "a"\nwhere = { "/at" = 2026-01-01 }',
        "routes[0].where./at: 2026-01-01 has no JSON form; put a text, number, true or false there",
    ),
    (
        "[tokens]\na = { secret = 'plain:x', may = 'write' }",
        'tokens.a.may: "write" is not one of "read", "read-bodies", "admin"',
    ),
    ("[tokens]\na = { may = 'read' }", """tokens.a: "secret" is missing: the token's text"""),
    (
        "[callers]\na = 'plain:x'\nb = 'plain:x'",
        "callers.b: has the same secret as callers.a, so nobody could tell them apart",
    ),
    (
        "[callers]\na = 'x'",
        f"callers.a: a secret is written as {REFERENCE}; what stands there is none of them (not shown)",
    ),
    (
        "[callers]\na = 'env:not a name'",
        'callers.a: after "env:" comes the name of an environment variable, such as "env:PARTNER_SECRET"',
    ),
    ('env_file = ""', 'env_file: "" is not a path'),
]


@pytest.mark.parametrize(("text", "sentence"), ONE, ids=[sentence.split(":")[0] for _, sentence in ONE])
def test_each_mistake_is_told_with_its_key_its_value_and_what_is_allowed(
    tmp_path: Path, text: str, sentence: str
) -> None:
    assert refusal(tmp_path, text) == sentence


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = "[server]\nprot = 1\nqueue = 0\n[sources.s]\nid = 3\n[[routes]]\nsource = 'x'\n"
    assert refusal(tmp_path, text).splitlines() == [
        "4 problems",
        '  server.prot: unknown key; did you mean "port"?',
        "  server.queue: 0 is not a whole number from 1 to 1000000",
        "  sources.s.id: 3 is not a text",
        '  routes[0]: "to" is missing: a target, or a list',
    ]


def test_all_contradictions_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    told = refusal(tmp_path, "[sources.a]\nid = 'header:X'\n[sources.b]\nunsigned = true\n[targets.t]\n")
    assert told.startswith("3 problems\n")
    assert [line.split(":")[0] for line in told.splitlines()[1:]] == ["  sources.a", "  sources.b", "  targets.t"]


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    told = refusal(tmp_path, "[server]\nport = 1\nhost = localhost\n")
    assert "not valid TOML: Invalid value (at line 3, column 8); texts need quotes, tables a [heading]" in told


def test_a_key_that_is_given_twice_is_a_syntax_error(tmp_path: Path) -> None:
    assert "Cannot overwrite a value (at line 3" in refusal(tmp_path, "[server]\nport = 1\nport = 2\n")


def test_a_file_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, b"[server]\nhost = '\xff'\n") == ", line 2: not UTF-8; save the file as UTF-8"


def test_a_deeply_nested_file_is_refused_rather_than_crashing(tmp_path: Path) -> None:
    assert "not valid TOML" in refusal(tmp_path, "a = " + "[" * 100_000)


def test_a_long_value_is_told_shortened(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, f'[server]\nlog = "{"x" * 10_000}"')) < 150


def test_a_file_that_is_named_but_missing_is_told_with_who_names_it(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    with pytest.raises(ConfigError, match=r"no\.toml: no such file, yet --config names it"):
        load(missing, environ={}, overrides={})
    with pytest.raises(ConfigError, match=r"no\.toml: no such file, yet \$ONCEBOX_CONFIG names it"):
        load(None, environ={"ONCEBOX_CONFIG": str(missing)}, overrides={})


def test_a_folder_in_place_of_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, environ={}, overrides={})


def test_a_bad_flag_or_variable_is_told_by_its_own_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, "", port=70_000) == "--port: 70000 is not a whole number from 0 to 65535"
    file = tmp_path / "litestar.toml"
    with pytest.raises(ConfigError, match='ONCEBOX_PORT: "http" is not a whole number from 0 to 65535'):
        load(file, environ={"ONCEBOX_PORT": "http"}, overrides={})


def test_a_folder_in_place_of_the_database_is_told_from_wherever_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    told = f"store.path: {tmp_path / 'data'} is a folder; name the file in it, such as oncebox.db"
    assert refusal(tmp_path, "[store]\npath = 'data'") == told
    assert refusal(tmp_path, "", db=tmp_path / "data") == told
    assert refusal(tmp_path, "", db=Path(":memory:")).startswith('--db: ":memory:" would keep nothing')
    with pytest.raises(ConfigError, match='ONCEBOX_DB: a "file:" URI'):
        load(tmp_path / "litestar.toml", environ={"ONCEBOX_DB": "file:x"}, overrides={})


def test_an_empty_host_is_told_by_its_flag(tmp_path: Path) -> None:
    assert refusal(tmp_path, "", host="") == '--host: "" is not a text'


def test_a_bad_configuration_ends_the_command_with_code_2() -> None:
    assert ConfigError.exit_code == 2
