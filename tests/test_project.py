"""The project's own files: what lies at the top, what is pinned, what the versions say."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("scripts/requirements.txt", "scripts/requirements-test.txt")
AT_THE_TOP = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "app",
    "litestar.toml",
    "pyproject.toml",
    "scripts",
    "tests",
}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def tracked() -> set[str]:
    """The files under version control; in an unpacked archive there is none and the test is left out."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git work tree")
    return set(filter(None, done.stdout.split("\0")))


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def wanted(*extras: str) -> list[str]:
    named = [requirement for extra in extras for requirement in PROJECT["optional-dependencies"][extra]]
    return [one for one in (*PROJECT["dependencies"], *named) if name_of(one) != PROJECT["name"]]


CLOCKS = {"now", "utcnow", "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}


def read_at_import(node: ast.AST) -> list[str]:
    """The clocks that a module reads while it is imported: what stands in no function, decorators and defaults too."""
    inside: list[ast.AST]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inside = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    elif isinstance(node, ast.Lambda):
        inside = []
    else:
        inside = list(ast.iter_child_nodes(node))
    found = [clock for part in inside for clock in read_at_import(part)]
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        found += [f"line {node.lineno}: {name}()"] if name in CLOCKS else []
    return found


def test_no_module_keeps_the_time_of_its_import() -> None:
    """A test that is judged minutes after its module was read must not find an old time in it."""
    modules = [path for top in ("app", "scripts", "tests") for path in (ROOT / top).rglob("*.py")]
    stale = {str(path.relative_to(ROOT)): read_at_import(ast.parse(path.read_text())) for path in modules}
    assert {path: clocks for path, clocks in stale.items() if clocks} == {}


@pytest.mark.parametrize("line", ["NOW = datetime.now(UTC)", "def f(at=time()): ...", "@given(time())\ndef f(): ..."])
def test_a_clock_that_is_read_at_import_is_found(line: str) -> None:
    assert read_at_import(ast.parse(line)) != []


def test_nothing_else_lies_at_the_top() -> None:
    assert {path.split("/", maxsplit=1)[0] for path in tracked()} - AT_THE_TOP == set()


def test_the_source_root_is_not_a_package() -> None:
    assert not (ROOT / "app" / "__init__.py").exists()
    assert (ROOT / "app" / "oncebox" / "py.typed").exists()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)\b", text, re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS)
def test_each_pin_is_exact_and_has_hashes(lock: str) -> None:
    blocks = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
    assert [block for block in blocks if not re.match(r"[a-z0-9._-]+==\S+", block)] == []
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_every_dependency_is_pinned() -> None:
    assert {name_of(one) for one in wanted()} - pins(LOCKS[0]).keys() == set()
    assert {name_of(one) for one in wanted(*PROJECT["optional-dependencies"])} - pins(LOCKS[1]).keys() == set()
    assert "setuptools" in pins(LOCKS[0]).keys() & pins(LOCKS[1]).keys()


def test_the_tests_run_on_the_releases_that_the_server_runs_on() -> None:
    run, test = pins(LOCKS[0]), pins(LOCKS[1])
    assert {name: (pin, test.get(name)) for name, pin in run.items() if test.get(name) != pin} == {}


def test_an_exact_requirement_is_the_pin() -> None:
    exact = dict(one.split("==") for one in wanted() if "==" in one)
    assert exact == {name: pins(LOCKS[0])[name] for name in exact}
    assert "aiosqlite" in exact


def test_the_changelog_speaks_of_this_version() -> None:
    first = re.search(r"^## \[(.+?)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first
    assert PROJECT["version"] in first.groups()


@pytest.mark.parametrize("script", ["serve", "test", "check", "lock", "bench"])
def test_a_script_can_be_started(script: str) -> None:
    assert (ROOT / "scripts" / script).stat().st_mode & 0o111
