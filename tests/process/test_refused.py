"""A mistake of ours mended: what was refused because of it is accepted after all, each event once."""

from __future__ import annotations

import hashlib
import hmac
import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from process.rig import APP, TOKEN, Client, Server, until
from process.servers import Serve

pytestmark = pytest.mark.process

HANDLERS = """
from oncebox import Event, Transaction, on, setup

@setup
def tables(db: Transaction) -> None:
    db.execute("create table if not exists runs (id text) strict")

@on("gh")
def count(event: Event, db: Transaction) -> None:
    db.execute("insert into runs values (?)", (event.id,))
"""
WRONG = """
[sources.gh]
preset = "github"
id = "header:X-Wrong"
secrets = ["plain:wrong"]
"""
RIGHT = """
[sources.gh]
preset = "github"
secrets = ["plain:right"]
"""


def deliver(server: Server, number: int, secret: str = "right") -> int:
    """One GitHub request; the status of the answer."""
    body = json.dumps({"zen": "é" * number}).encode()
    headers = {
        "X-GitHub-Delivery": f"d-{number}",
        "X-GitHub-Event": "push",
        "X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
    }
    with Client(server) as client:
        return client.request("POST", "/in/gh", body, headers=headers).status


def reload(server: Server, config: str) -> None:
    path = server.folder / "litestar.toml"
    path.write_text(path.read_text().replace(WRONG, config))
    before = server.log().count("reload")
    server.signal(signal.SIGHUP)
    until(lambda: server.log().count("reload") > before, 10, "reloaded")


def run(server: Server, *args: str, code: int = 0) -> Any:
    """A command in the server's folder; its JSON."""
    command = [sys.executable, "-c", "from oncebox.cli import main; main()", *args, "--json", "--token", TOKEN]
    done = subprocess.run(
        command,
        cwd=server.folder,
        env={"PYTHONPATH": str(APP)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done
    return json.loads(done.stdout)


def kept(server: Server) -> int:
    return int(server.rows("select count(*) from refused")[0][0])


def test_twenty_requests_refused_by_a_wrong_configuration_become_twenty_events(serve: Serve) -> None:
    server = serve(handlers=HANDLERS, config=WRONG).start()
    assert {deliver(server, number) for number in range(10)} == {401}
    # The other mistake shows only when the signature is right.
    assert {deliver(server, number, "wrong") for number in range(10, 20)} == {400}
    until(lambda: kept(server) == 20, 10, "all kept")
    again = run(server, "refused", "accept", "--all", "gh", code=1)
    assert (again["accepted"], again["refused"]) == (0, 20)

    reload(server, RIGHT)
    told = run(server, "refused", "accept", "--all", "gh", code=1)
    assert (told["accepted"], told["refused"]) == (10, 10)
    assert "does not match" in told["requests"][-1]["detail"]
    trusted = run(server, "refused", "accept", "--all", "gh", "--trust")
    assert (trusted["accepted"], trusted["refused"]) == (10, 0)
    assert run(server, "refused", "accept", "--all", "gh")["requests"] == []

    first = run(server, "refused", "accept", "1")["requests"][0]
    assert (first["replayed"], first["source"]) == (True, "gh")
    assert deliver(server, 0) == 202
    server.until_quiet(10)
    assert server.rows("select count(*), count(distinct id) from runs") == [(20, 20)]
    assert server.rows("select verified, count(*) from events group by 1") == [("hmac", 10), ("trusted", 10)]
    acts = server.rows("select who, what, detail from acts order by n")
    assert acts[0] == ("admin", "refused accepted", "1 of gh")
    assert sum("signature not looked at" in detail for _, _, detail in acts) == 10
    assert len(acts) == 21
    assert server.rows("select count(*) from refused where accepted_at is null") == [(0,)]


def test_all_with_the_right_signature_are_accepted_without_trust(serve: Serve) -> None:
    server = serve(handlers=HANDLERS, config=WRONG).start()
    assert {deliver(server, number) for number in range(20)} == {401}
    until(lambda: kept(server) == 20, 10, "all kept")
    reload(server, RIGHT)
    told = run(server, "refused", "accept", "--all", "gh")
    assert [one["replayed"] for one in told["requests"]] == [False] * 20
    assert [one["n"] for one in told["requests"]] == list(range(1, 21))
    server.until_quiet(10)
    assert server.rows("select count(*), count(distinct id) from runs") == [(20, 20)]
    assert server.rows("select id from events order by seq") == [(f"d-{number}",) for number in range(20)]


def test_without_a_server_the_file_is_held_meanwhile(serve: Serve) -> None:
    server = serve(handlers=HANDLERS, config=WRONG).start()
    assert {deliver(server, number) for number in range(3)} == {401}
    until(lambda: kept(server) == 3, 10, "all kept")
    assert server.stop() == 0
    path = server.folder / "litestar.toml"
    path.write_text(path.read_text().replace(WRONG, RIGHT))
    told = run(server, "refused", "accept", "--all", "gh")
    assert (told["accepted"], told["refused"]) == (3, 0)
    assert {row[0] for row in server.rows("select who from acts")} == {"command line"}
    server.start()
    server.until_quiet(10)
    assert server.rows("select count(*) from runs") == [(3,)]
    assert server.stop() == 0


def test_what_is_not_there_or_not_asked_properly_is_told(serve: Serve) -> None:
    server = serve(config=WRONG).start()
    with Client(server) as client:
        admin = {"Authorization": f"Bearer {TOKEN}"}
        assert client.request("POST", "/api/refused/7/accept", headers=admin).problem == "not-found"
        assert client.request("POST", "/api/refused/7/accept").problem == "unauthorized"
        odd = client.request("POST", "/api/refused/7/accept", b'{"trust": 1}', headers=admin)
        assert (odd.status, odd.problem) == (400, "bad-request")
    assert run(server, "refused", "accept", "7", code=1)["requests"][0]["detail"].startswith("there is no refused")
    assert deliver(server, 1, "other") == 401
    until(lambda: kept(server) == 1, 10, "kept")
    with Client(server) as client:
        answer = client.request("POST", "/api/refused/1/accept", headers=admin)
    assert (answer.status, answer.problem) == (422, "bad-signature")


def test_explain_tells_why_one_was_refused(serve: Serve) -> None:
    server = serve(config=WRONG).start()
    assert deliver(server, 1) == 401
    until(lambda: kept(server) == 1, 10, "kept")
    told = run(server, "explain", "--refused", "1")
    assert (told["accepted"], told["problem"]) == (False, "bad-signature")
    path = server.folder / "litestar.toml"
    path.write_text(path.read_text().replace(WRONG, RIGHT))
    told = run(server, "explain", "--refused", "1")
    assert (told["accepted"], told["events"][0]["id"], told["events"][0]["parts"]) == (True, "d-1", ["d-1"])
