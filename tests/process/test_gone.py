"""Targets that are taken out of the configuration, and reruns of what only some targets have finished."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from process.rig import CODE, Fresh, environment, until


def test_a_rerun_leaves_alone_what_went_to_a_target_that_is_gone(tmp_path: Path) -> None:
    old, new = '[targets.old]\ncommand = ["true"]\n', '[targets.new]\ncommand = ["true"]\n'
    both = old + new + '[[routes]]\nsource = "demo"\nto = [{}]'
    server = Fresh(tmp_path / "a", config=both.format('"old", "new"'))
    try:
        server.start()
        for n in range(3):
            server.post(f"e{n}")
        server.until_quiet(10)
        server.stop()
        text = (server.folder / "litestar.toml").read_text()
        text = text.replace(old, "").replace('"old", ', "")
        (server.folder / "litestar.toml").write_text(text)
        server.start()
        assert oncebox(server, "rerun", "--source", "demo", "--no-wait").returncode == 0
        until(lambda: server.rows("select state, done from reruns") == [("done", 3)], 5)
        assert server.states() == {"done": 6}
    finally:
        server.end()


def test_a_repeat_does_not_revive_what_is_dead_at_a_target_that_is_gone(tmp_path: Path) -> None:
    old = '[targets.old]\ncommand = ["false"]\nretry = { attempts = 1 }\n'
    server = Fresh(tmp_path / "a", config=old + '[[routes]]\nsource = "demo"\nto = "old"')
    try:
        server.start()
        server.post("e1")
        server.until_quiet(10)
        server.stop()
        path = server.folder / "litestar.toml"
        path.write_text(path.read_text().replace("targets.old", "targets.new").replace('"old"', '"new"'))
        server.start()
        assert server.post("e1").replayed
        until(lambda: server.rows("select replays from replays") == [(1,)], 5)
        assert server.states() == {"dead": 1}
    finally:
        server.end()


def test_of_the_numbers_of_dead_events_only_what_is_dead_runs_again(tmp_path: Path) -> None:
    config = '[targets.a]\ncommand = ["true"]\n[targets.b]\ncommand = ["false"]\nretry = { attempts = 1 }\n'
    server = Fresh(tmp_path / "a", config=config + '[[routes]]\nsource = "demo"\nto = ["a", "b"]')
    try:
        server.start()
        server.post("e1")
        server.until_quiet(10)
        for seqs in (["1"], ["1", "1"]):
            assert oncebox(server, "rerun", *seqs, "--state", "dead", "--no-wait").returncode == 0
            until(lambda: server.rows("select count(*) from reruns where state = 'running'") == [(0,)], 5)
        assert server.rows("select target, run from deliveries order by 1") == [("a", 1), ("b", 3)]
    finally:
        server.end()


def oncebox(server: Fresh, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CODE, *words]
    return subprocess.run(command, cwd=server.folder, env=environment(), capture_output=True, text=True, check=False)
