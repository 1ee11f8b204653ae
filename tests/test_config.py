"""The configuration: where it is found, what goes before what, what it becomes."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from oncebox.config import Backoff, Config, MinFree, MissingId, Settings, keys, load, print_defaults
from oncebox.errors import ConfigError

SHIPPED = Path(__file__).parent.parent / "litestar.toml"
# The example of the documentation, every kind of key in it.
FULL = """
handlers = ["handlers"]
env_file = ".env"
[tool.other]
anything = 1
[server]
host = "127.0.0.1"
port = 8640
public_url = "https://hooks.example.com/"
max_body = "5MiB"
queue = 1000
grace = "20s"
trusted_proxies = ["10.0.0.0/8", "::1"]
log = "auto"
[tokens]
admin = "env:TOKEN"
grafana = { secret = "env:GRAFANA", may = "read" }
[store]
path = "oncebox.db"
durability = "full"
min_free = "5%"
[retention]
bodies = "30d"
keys = "forever"
[backup]
dir = "backups"
then = ["rclone", "copy", "{file}", "remote:box"]
[alerts]
url = "env:HOOK"
format = "slack"
on = ["failing", "dead"]
[sources.stripe]
preset = "stripe"
secrets = ["env:STRIPE"]
[sources.partner]
id = ["body:/event/id", "header:X-Part"]
type = "body:/event/kind"
signature = { scheme = "hmac", hash = "sha256", from = "header:X-Signature", encoding = "hex", message = "{body}" }
secrets = ["env:NEW", "env:OLD"]
retention = { bodies = "7d" }
on_missing_id = "body-hash:10m"
silent = "2h"
[targets.shop]
url = "http://127.0.0.1:3000/hooks"
secret = "env:SHOP"
rate = "50/s"
retry = { factor = 2, give_up = "never" }
[[routes]]
source = "stripe"
type = "invoice.*"
where = { "/livemode" = true }
ordered_by = "/data/object/customer"
to = "shop"
[callers]
acme = "env:ACME"
"""
ENVIRON = {name: f"value of {name}" for name in ("TOKEN", "GRAFANA", "STRIPE", "NEW", "OLD", "SHOP", "ACME")} | {
    "HOOK": "https://hooks.example.com/x"
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")


def write(folder: Path, text: str, name: str = "litestar.toml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_the_documented_example_becomes_a_configuration(tmp_path: Path) -> None:
    write(tmp_path, "X=1", ".env")
    config = load(write(tmp_path, FULL), environ=ENVIRON, overrides={})
    assert config.server.public_url == "https://hooks.example.com"
    assert config.server.max_body == 5 * 2**20
    assert config.server.grace == 20.0
    assert (config.tokens["admin"].may, config.tokens["grafana"].may) == ("admin", "read")
    assert config.tokens["grafana"].secret.value == "value of GRAFANA"
    assert config.backup.dir == tmp_path / "backups"
    assert config.retention.keys == math.inf
    partner = config.sources["partner"]
    assert partner.id == ("body:/event/id", "header:X-Part")
    assert partner.signature is not None
    assert partner.signature["message"] == "{body}"
    assert partner.on_missing_id == MissingId("body-hash", 600.0)
    assert (partner.retention.bodies, partner.retention.keys, partner.silent) == (7 * 86_400.0, None, 7200.0)
    shop = config.targets["shop"]
    assert (shop.rate, shop.retry.factor, shop.retry.attempts, shop.retry.give_up) == (50.0, 2.0, 12, math.inf)
    (route,) = config.routes
    assert (route.to, route.where, route.ordered_by) == (("shop",), {"/livemode": True}, "/data/object/customer")
    assert config.callers["acme"].value == "value of ACME"
    assert all("this version" in warning for warning in config.warnings)


def test_without_a_file_there_is_one_unsigned_source_for_this_machine() -> None:
    config = load(None, environ={}, overrides={})
    demo = config.sources["demo"]
    assert list(config.sources) == ["demo"]
    assert (demo.id, demo.unsigned, demo.loopback_only) == ("header:Idempotency-Key", True, True)
    assert (config.path, config.folder, config.store.path) == (None, Path.cwd(), Path.cwd() / "oncebox.db")
    assert config.warnings == ()


def test_a_named_file_goes_before_the_environment_and_that_before_the_folder(tmp_path: Path) -> None:
    named = write(tmp_path, "[server]\nport = 1", "named.toml")
    by_environment = write(tmp_path, "[server]\nport = 2", "environment.toml")
    write(Path.cwd(), "[server]\nport = 3")
    environ = {"ONCEBOX_CONFIG": str(by_environment)}
    assert load(named, environ=environ, overrides={}).server.port == 1
    assert load(None, environ=environ, overrides={}).server.port == 2
    assert load(None, environ={"ONCEBOX_CONFIG": ""}, overrides={}).server.port == 3


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[server]\nhost = "127.0.0.3"\nport = 3\n[store]\npath = "three.db"')
    environ = {"ONCEBOX_HOST": "127.0.0.2", "ONCEBOX_PORT": "2", "ONCEBOX_DB": "two.db"}
    flags = {"host": "127.0.0.1", "port": 1, "db": "/one.db"}

    def seen(environ: dict[str, str], flags: dict[str, object]) -> tuple[str, int, Path]:
        config = load(file, environ=environ, overrides=flags)
        return config.server.host, config.server.port, config.store.path

    assert seen({}, {}) == ("127.0.0.3", 3, tmp_path / "three.db")
    assert seen(environ, {"host": None, "port": None, "db": None}) == ("127.0.0.2", 2, Path.cwd() / "two.db")
    assert seen(environ, dict(flags)) == ("127.0.0.1", 1, Path("/one.db"))
    assert seen(dict.fromkeys(environ, ""), {"db": Path("x")}) == ("127.0.0.3", 3, Path.cwd() / "x")


def test_paths_are_meant_from_the_folder_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, '[store]\npath = "data/inbox.db"\n[backup]\ndir = "/copies"')
    config = load(Path("../litestar.toml"), environ={}, overrides={})
    assert (config.folder, config.path) == (tmp_path, tmp_path / "litestar.toml")
    assert (config.store.path, config.backup.dir) == (tmp_path / "data/inbox.db", Path("/copies"))


def test_loading_again_reads_the_file_and_the_secrets_again(tmp_path: Path) -> None:
    text = '[tokens]\na = "file:key"\n[server]\nqueue = 7\n'
    file, key = write(tmp_path, text), write(tmp_path, "old", "key")
    first = load(file, environ={}, overrides={})
    assert load(file, environ={}, overrides={}) == first
    key.write_text("new")
    assert load(file, environ={}, overrides={}).tokens["a"].secret.value == "new"


def test_a_file_saved_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "litestar.toml"
    file.write_bytes(b"\xef\xbb\xbf[server]\r\nport = 9\r\n")
    assert load(file, environ={}, overrides={}).server.port == 9


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[server]\nhost = "0.0.0.0"', "server.host: 0.0.0.0 is reachable from other machines"),
        ('[server]\nhost = "::"\npublic_url = "http://x.example"', "server.host: :: is reachable from other machines"),
        ('[store]\ndurability = "normal"', "store.durability: normal may lose acknowledged events"),
        (
            '[sources.mail]\ninternal = true\nid = "header:X"\nbatch = "array"\nloopback_only = true',
            "sources.mail: internal = true takes nothing from outside, so id, batch and loopback_only have no effect",
        ),
        (
            '[sources.mail]\ninternal = true\non_missing_id = "unique"',
            "sources.mail: internal = true takes nothing from outside, so on_missing_id has no effect",
        ),
        (
            '[sources.s]\nid = "header:X"\nunsigned = true\nsignature = { scheme = "hmac" }',
            "sources.s: unsigned = true checks nothing, so signature has no effect",
        ),
        (
            '[[routes]]\nsource = "s"\nto = "t"\non_dead = "skip"',
            "routes[0]: on_dead is about events in order; without ordered_by it has no effect",
        ),
        (
            '[sources.s]\nid = "header:X"\nunsigned = true\ntime = "header:T"',
            "time: this version does nothing with the sender's own time",
        ),
        ('[targets.t]\ncommand = ["./nope.sh", "x"]', "targets.t.command: there is no "),
        ('[targets.t]\ncommand = ["./litestar.toml"]', "targets.t.command: "),
        ('[targets.t]\ncommand = ["no-such-program-anywhere"]', 'targets.t.command: there is no program "no-such'),
    ],
)
def test_what_is_allowed_but_unwise_is_told(tmp_path: Path, text: str, told: str) -> None:
    (warning,) = load(write(tmp_path, text), environ={}, overrides={}).warnings
    assert warning.startswith(told)


def test_a_command_that_can_be_started_is_not_warned_about(tmp_path: Path) -> None:
    script = write(tmp_path, "#!/bin/sh", "deploy.sh")
    text = '[targets.a]\ncommand = ["./deploy.sh"]\n[targets.b]\ncommand = ["sh", "-c", "true"]'
    (warning,) = load(write(tmp_path, text), environ={}, overrides={}).warnings
    assert warning.startswith(f"targets.a.command: {script} is not a file that may be executed")
    script.chmod(0o755)
    assert load(write(tmp_path, text), environ={}, overrides={}).warnings == ()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_listening_on_this_machine_only_is_not_warned_about(tmp_path: Path, host: str) -> None:
    assert load(write(tmp_path, f'[server]\nhost = "{host}"'), environ={}, overrides={}).warnings == ()


def test_listening_everywhere_behind_https_is_not_warned_about(tmp_path: Path) -> None:
    text = '[server]\nhost = "0.0.0.0"\npublic_url = "https://hooks.example.com"'
    assert load(write(tmp_path, text), environ={}, overrides={}).warnings == ()


def test_the_space_kept_free_is_the_smaller_of_the_setting_and_a_twentieth() -> None:
    assert MinFree(share=0.05).bytes_of(100 << 30) == 5 << 30
    assert MinFree(share=0.01).bytes_of(2 << 30) == 64 << 20
    assert MinFree(share=0.5).bytes_of(100) == 5
    assert MinFree(size=1 << 30).bytes_of(100 << 30) == 1 << 30
    assert MinFree(size=1 << 30).bytes_of(1 << 30) == (1 << 30) // 20


def settings() -> Iterator[str]:
    return (key for key, _, _ in keys(Settings))


def test_the_shipped_file_loads_without_warnings_and_says_what_runs_without_a_file() -> None:
    shipped = load(SHIPPED, environ={}, overrides={})
    built_in = load(None, environ={}, overrides={})
    assert shipped.warnings == ()
    placed = msgspec.structs.replace
    assert placed(shipped, path=None, folder=Path(), store=built_in.store) == placed(built_in, folder=Path())


def test_everything_asleep_in_the_shipped_file_is_valid_and_shows_the_defaults(tmp_path: Path) -> None:
    awake = re.sub(r"(?m)^#(?! |$)", "", SHIPPED.read_text(encoding="utf-8"))
    environ = {name: f"https://{name}.example" for name in re.findall(r"env:([A-Z_]+)", awake)}
    config = load(write(tmp_path, awake), environ=environ, overrides={})
    fresh = Config()
    examples = {"server": {"name", "public_url"}, "backup": {"dir", "then"}, "alerts": {"url"}, "store": {"path"}}
    for table in ("server", "store", "retention", "backup", "alerts"):
        for key in set(getattr(fresh, table).__struct_fields__) - examples.get(table, set()):
            assert getattr(getattr(config, table), key) == getattr(getattr(fresh, table), key), f"{table}.{key}"
    assert config.targets["shop"].retry == Backoff()
    assert config.sources["mail"].internal


@pytest.mark.parametrize("key", sorted(settings()))
def test_every_key_is_in_the_shipped_file_and_in_the_printed_defaults(key: str) -> None:
    name = re.escape(key.rpartition(".")[2])
    heading = re.escape(key)
    for text in (SHIPPED.read_text(encoding="utf-8"), print_defaults()):
        assert re.search(rf"\b{name} = |\[{heading}[\].]|\[\[{heading}\]\]", text)


def test_printed_defaults_are_a_configuration_that_changes_nothing(tmp_path: Path) -> None:
    text = print_defaults()
    tomllib.loads(text)
    config = load(write(tmp_path, text), environ={}, overrides={})
    empty = load(write(tmp_path, "", "empty.toml"), environ={}, overrides={})
    assert msgspec.structs.replace(config, path=None) == msgspec.structs.replace(empty, path=None)


def test_every_key_has_a_default_except_those_that_must_be_given() -> None:
    required = {key for key, _, default in keys(Settings) if default is msgspec.NODEFAULT}
    assert required == {"tokens.NAME.secret", "routes[].source", "routes[].to"}


def misspelt(key: str) -> str:
    """A file that has one letter too many in a key, all else around it as it must be."""
    above, _, name = key.rpartition(".")
    if not above:
        return f"{name}x = 1\n"
    heading = f"[[{above[:-2]}]]" if above.endswith("[]") else f"[{above.replace('NAME', 'demo')}]"
    return f"{heading}\n{name}x = 1\n"


@pytest.mark.parametrize("key", sorted(settings()))
def test_every_key_is_refused_when_misspelt_with_the_right_one_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, misspelt(key)), environ={}, overrides={})
    where = key.replace("NAME", "demo").replace("[]", "[0]")
    name = key.rpartition(".")[2]
    assert f'{where}x: unknown key; did you mean "{name}"?' in str(caught.value)
