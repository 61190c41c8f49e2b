"""SIGKILL of the embedded process at every commit: no step is lost, no result recorded twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from flowengine.store import Database
from tests.acceptance import cancelled_trip, thirty_steps
from tests.fork_server import context
from tests.servers import PostgresServer


def run_child(
    url: str,
    commits: int,
    moment: str,
    target: Callable[[str, int, str], None] = thirty_steps.run_and_die,
) -> int:
    child = context.Process(target=target, args=(url, commits, moment))
    child.start()
    child.join(timeout=120)
    assert child.exitcode is not None, "the child did not end"
    return int(child.exitcode)


@pytest.mark.parametrize("moment", ["after", "before"])
@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_process_killed_at_any_commit_loses_no_step(
    moment: str, stride: int, tmp_path: Path
) -> None:
    commit = 0
    killed = 0
    while True:
        commit += stride
        path = tmp_path / f"{commit}.db"
        url = f"sqlite:///{path}"
        exitcode = run_child(url, commit, moment)
        if exitcode == 0:
            break  # the run has fewer commits than that
        assert exitcode == -9
        killed += 1
        assert run_child(url, 0, moment) == 0, f"killed {moment} commit {commit}"
        check_rows(path)
    # On a busy machine batches are larger: about 10 commits instead of 25.
    assert killed >= (6 if stride == 1 else 2), "the run should have more commits"


def check_rows(path: Path) -> None:
    """One run, completed; one row for every step, one recorded result for every task."""
    rows = sqlite3.connect(path)
    runs = rows.execute("SELECT state, outputs FROM flowengine_run").fetchall()
    assert runs == [("COMPLETED", f'{{"result":{thirty_steps.EXPECTED}}}')]
    calls = rows.execute(
        "SELECT path, state FROM flowengine_step WHERE object_type = 'VariableAssignment'"
    ).fetchall()
    assert len({path for path, _ in calls}) == len(calls) == 31
    assert {state for _, state in calls} == {"state.statement.Complete"}
    recorded = rows.execute(
        "SELECT step_id, count(*) FROM flowengine_task WHERE state = 'completed' GROUP BY step_id"
    ).fetchall()
    assert len(recorded) == 30
    assert {count for _, count in recorded} == {1}
    unfinished = rows.execute(
        "SELECT count(*) FROM flowengine_task WHERE state IN ('pending', 'running') OR NOT taken_in"
    ).fetchone()
    assert unfinished == (0,)
    rows.close()


#: With the number N the process is killed at one in N commits; in the chaos run at each.
STRIDES = [
    ("sqlite", "after", 9),
    *(
        pytest.param((kind, moment, 1), marks=pytest.mark.chaos)
        for kind in ("sqlite", "postgresql")
        for moment in ("after", "before")
    ),
]


@pytest.mark.parametrize("given", STRIDES, ids=str)
def test_a_process_killed_at_any_commit_of_a_cancellation_loses_no_always_block(
    given: tuple[str, str, int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind, moment, stride = given
    commit = killed = 0
    while True:
        commit += stride
        url = f"sqlite:///{tmp_path}/{commit}.db"
        if kind == "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            url = postgres.new_database(request.getfixturevalue("with_schema"))
        exitcode = run_child(url, commit, moment, cancelled_trip.run_and_die)
        if exitcode == 0:
            break
        assert exitcode == -9
        killed += 1
        assert run_child(url, 0, moment, cancelled_trip.run_and_die) == 0, f"commit {commit}"
        check_cancelled(url)
    print(f"{kind}: killed {moment} {killed} commits")
    assert killed >= 1, "the run should have more commits"


def check_cancelled(url: str) -> None:
    """The run and its child are cancelled; every step that began was undone, once on record."""
    database = Database(url)
    with database.read() as session:

        def rows(query: str) -> list[tuple[object, ...]]:
            return [tuple(row) for row in session.connection.execute(text(query))]

        states = rows("SELECT state FROM flowengine_run")
        undone = rows(
            "SELECT path, state FROM flowengine_step WHERE path LIKE '%[always].undo' "
            "AND object_type = 'VariableAssignment'"
        )
        steps = rows("SELECT DISTINCT state FROM flowengine_step")
        left = rows(
            "SELECT uuid FROM flowengine_task WHERE state IN ('pending', 'held', 'running') "
            "OR NOT taken_in"
        )
        facts = rows("SELECT id FROM flowengine_fact WHERE NOT taken_in")
    database.close()
    assert states == [("CANCELLED",)] * 2
    assert len(undone) == cancelled_trip.LEGS + 1, "that of the child run too"
    assert {state for _, state in undone} == {"state.statement.Complete"}
    assert {state for (state,) in steps} == {
        "state.statement.Complete",
        "state.statement.Cancelled",
    }
    assert left == []
    assert facts == []
