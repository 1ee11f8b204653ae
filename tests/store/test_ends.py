"""Ends written together come to the same as ends written one by one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncebox.model import Settled
from oncebox.store import ends
from oncebox.store.books import Books
from oncebox.store.ends import FEW, settle_all
from oncebox.store.migrations import connect
from oncebox.store.settles import settle

NOW = 1_796_000_000_000_000
TARGETS = ("shop", "mail")
KEYS = (None, None, "a", "b")
STATES = ("running", "running", "running", "running", "pending", "parked", "done", "dead")

Row = tuple[Any, ...]
rows = st.lists(
    st.tuples(st.sampled_from(STATES), st.sampled_from(KEYS), st.sampled_from((None, 1)), st.integers(1, 2)),
    min_size=1,
    max_size=14,
)
errors = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))


@st.composite
def settleds(draw: st.DrawFn) -> tuple[list[Row], list[Settled]]:
    """Deliveries as they stand, and ends of some of them; a few are of an attempt that is not the current one."""
    there = draw(rows)
    ended = []
    for number in draw(st.permutations(range(len(there)))):
        _, _, _, attempt = there[number]
        state, outcome = draw(
            st.sampled_from((("done", "ok"), ("pending", "error"), ("dead", "refused"), ("pending", "unreachable")))
        )
        one = Settled(
            seq=number // 2 + 1,
            target=TARGETS[number % 2],
            run=draw(st.sampled_from((1, 1, 1, 2))),
            attempt=draw(st.sampled_from((attempt, attempt, attempt, 3))),
            state=state,
            outcome=outcome,
            started_at=NOW - 5,
            duration=draw(st.integers(0, 1 << 40)),
            now=NOW,
            due=draw(st.integers(0, (1 << 62))),
            failures=draw(st.integers(0, 12)),
            error=draw(errors),
        )
        ended += [one] * draw(st.sampled_from((0, 1, 1, 1, 1, 2)))
    return there, ended


def fill(db: sqlite3.Connection, there: Sequence[Row]) -> None:
    db.execute("insert into reruns values (1, 'running', '{}', null, 0, 9, 9, 9, 1, 3, 0, 0, 0, 'x', 1, null)")
    for number, (state, key, rerun, attempt) in enumerate(there):
        row = (number // 2 + 1, TARGETS[number % 2], "demo", key, state, NOW, attempt, rerun)
        db.execute(
            "insert into deliveries (seq, target, source, order_key, state, due, attempts, rerun) "
            "values (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )


def filled(path: Path, there: Sequence[Row]) -> sqlite3.Connection:
    db = connect(path, "normal")
    fill(db, there)
    return db


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """Two empty files for all examples; what each writes is taken back."""
    apart, together = (connect(tmp_path_factory.mktemp("ends") / "x.db", "normal") for _ in range(2))
    with closing(apart), closing(together):
        yield apart, together


def outcome(db: sqlite3.Connection, books: Books, told: list[bool]) -> Any:
    tables = ("deliveries", "attempts", "reruns")
    held = [db.execute(f"select * from {table} order by 1, 2").fetchall() for table in tables]
    return held, told, {entry: n for entry, n in books.entries.items() if n}


@pytest.mark.parametrize("skipping", [frozenset(), frozenset({"shop"})])
@settings(max_examples=200)
@given(case=settleds())
def test_together_is_as_one_by_one(
    pair: tuple[sqlite3.Connection, sqlite3.Connection],
    skipping: frozenset[str],
    case: tuple[list[Row], list[Settled]],
) -> None:
    there, ended = case
    for db in pair:
        db.execute("begin")
        fill(db, there)
    try:
        (apart, together), books, other = pair, Books(1), Books(1)
        expected = outcome(apart, books, [settle(apart, one, books, skipping) for one in ended])
        assert outcome(together, other, settle_all(together, ended, other, skipping)) == expected
    finally:
        for db in pair:
            db.execute("rollback")


def test_many_ends_take_few_statements(tmp_path: Path) -> None:
    there = [("running", None, None, 1)] * 40
    ended = [
        Settled(
            seq=number // 2 + 1, target=TARGETS[number % 2], run=1, attempt=1, state="done", outcome="ok",
            started_at=NOW, duration=1, now=NOW,
        )
        for number in range(40)
    ]  # fmt: skip
    with closing(filled(tmp_path / "x.db", there)) as db:
        ran: list[str] = []
        db.set_trace_callback(ran.append)
        assert settle_all(db, ended, Books(1)) == [True] * 40
        assert len(ran) == 2
        late = [msgspec.structs.replace(one, attempt=2) for one in ended]
        assert settle_all(db, late, Books(1)) == [False] * 40


@pytest.mark.parametrize("sql", [ends.look_up(FEW), ends.write(FEW)])
def test_each_end_is_found_by_its_key(tmp_path: Path, sql: str) -> None:
    with closing(filled(tmp_path / "x.db", [("running", None, None, 1)] * FEW)) as db:
        plan = [row[3] for row in db.execute(f"explain query plan {sql}", [None] * sql.count("?"))]
    assert [step for step in plan if step.startswith("SCAN")] == [f"SCAN {FEW} CONSTANT ROWS", "SCAN v"]
    assert "USING PRIMARY KEY (seq=? AND target=?)" in plan[-1]


def test_more_ends_than_a_statement_takes_are_written(tmp_path: Path) -> None:
    there = [("running", None, None, 1)] * 700
    ended = [
        Settled(
            seq=number // 2 + 1, target=TARGETS[number % 2], run=1, attempt=1, state="dead", outcome="error",
            started_at=NOW, duration=1, now=NOW, failures=1, error="no",
        )
        for number in range(700)
    ]  # fmt: skip
    with closing(filled(tmp_path / "x.db", there)) as db:
        assert settle_all(db, ended, Books(1)) == [True] * 700
        assert db.execute("select count(*) from deliveries where state = 'dead' and failures = 1").fetchone() == (700,)
        assert db.execute("select count(*), min(detail) from attempts where outcome = 'error'").fetchone() == (
            700,
            "no",
        )
