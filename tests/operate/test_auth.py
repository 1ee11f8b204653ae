"""Who may ask, and whether they asked this server."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncebox.address import host_name
from oncebox.errors import ConfigError, Rejected
from oncebox.operate.auth import LONGEST, Brake, Hosts, Tokens, bearer
from oncebox.operate.token import ensure_token, read_token, token_path
from oncebox.store.sqlite import SQLiteStore
from operate.conftest import Caller, arrival


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/api/events", "grafana-token", 200),
        ("/api/events/1", "grafana-token", 200),
        ("/api/stats", "grafana-token", 200),
        ("/api/events/1/body", "grafana-token", 403),
        ("/api/events/1/body", "auditor-token", 200),
        ("/api/refused", "auditor-token", 403),
        ("/api/refused", "boss-token", 200),
        ("/api/events", None, 401),
        ("/api/events", "boss-toke", 401),
        ("/api/events", "boss-tokeñ", 401),
    ],
)
async def test_a_token_opens_what_it_may_and_nothing_else(
    store: SQLiteStore, api: Caller, path: str, token: str | None, status: int
) -> None:
    await store.accept([arrival("evt_1")])
    answer = await api.get(path, token)
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["type"] == "urn:oncebox:problem:unauthorized"
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.anyio
async def test_a_request_under_another_name_is_refused_even_with_the_right_token(api: Caller) -> None:
    answer = await api.get("/api/events", host="evil.example:8640")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:oncebox:problem:bad-request")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1:8640",
        "[::1]:8640",
        "hooks.example.com",
        "hooks.example.com.:443",
        "box:9",
    ],
)
def test_the_names_of_this_server_are_taken_with_any_port(host: str) -> None:
    Hosts("box", "https://hooks.example.com/base").check(host)


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil", "[::2]"])
def test_other_names_are_refused(host: str) -> None:
    with pytest.raises(Rejected, match="public_url"):
        Hosts("127.0.0.1", None).check(host)


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_bound_to_every_address_any_address_will_do_but_no_foreign_name(bind: str) -> None:
    hosts = Hosts(bind, None)
    hosts.check("192.168.1.7:8640")
    hosts.check("[fe80::1]:8640")
    with pytest.raises(Rejected):
        hosts.check("evil.example")


@pytest.mark.parametrize(
    ("origin", "fine"),
    [
        (None, True),
        ("http://127.0.0.1:8640", True),
        ("https://hooks.example.com", True),
        ("http://127.0.0.1:3000", False),
        ("https://evil.example", False),
        ("null", False),
    ],
)
def test_a_page_of_another_site_may_change_nothing(origin: str | None, fine: bool) -> None:
    hosts = Hosts("127.0.0.1", "https://hooks.example.com")
    if fine:
        hosts.check_origin(origin, "127.0.0.1:8640")
        return
    with pytest.raises(Rejected) as caught:
        hosts.check_origin(origin, "127.0.0.1:8640")
    assert caught.value.status == 403


@given(st.lists(st.floats(0, 60), max_size=50))
def test_wrong_tokens_wait_ever_longer_up_to_a_bound(steps: list[float]) -> None:
    brake, now = Brake(), 0.0
    for step in steps:
        now += step
        assert 0 < brake.wait(now) <= LONGEST + 1e-6
    waits = [brake.wait(now) for _ in range(30)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(LONGEST)
    assert brake.wait(now + 60) < 1


@given(st.text(min_size=1), st.text(min_size=1))
def test_only_the_very_token_is_known(secret: str, other: str) -> None:
    tokens = Tokens({"one": (secret, "read")})
    who = tokens.who(secret.encode())
    assert who is not None
    assert who.name == "one"
    assert (tokens.who(other.encode()) is not None) == (other == secret)


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", b"abc"),
        ("bearer  abc ", b"abc"),
        ("Bearer", None),
        ("Basic abc", None),
        ("", None),
        (None, None),
        ("Bearer \xc3\xab", b"\xc3\xab"),
    ],
)
def test_a_bearer_header_is_read_as_bytes(header: str | None, token: bytes | None) -> None:
    assert bearer(header) == token


def test_a_host_is_read_without_port_brackets_and_last_dot() -> None:
    assert [host_name(h) for h in ("[::1]:80", "A.b:1", "a.", "")] == ["::1", "a.b", "a", ""]


def test_a_token_is_made_once_for_the_owner_only(tmp_path: Path) -> None:
    database = tmp_path / "inbox.db"
    assert read_token(database) is None
    token = ensure_token(database)
    assert ensure_token(database) == read_token(database) == token
    assert len(token) >= 40
    assert stat.S_IMODE(token_path(database).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["inbox.db.token"]


def test_a_link_to_the_database_leads_to_the_same_token(tmp_path: Path) -> None:
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    assert ensure_token(tmp_path / "link.db") == ensure_token(tmp_path / "real.db")


def test_an_empty_token_file_is_no_open_door(tmp_path: Path) -> None:
    token_path(tmp_path / "inbox.db").write_text("\n")
    with pytest.raises(ConfigError, match="remove the file"):
        ensure_token(tmp_path / "inbox.db")
