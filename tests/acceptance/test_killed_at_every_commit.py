"""SIGKILL of the embedded process at every commit: no step is lost, no result recorded twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.acceptance import thirty_steps
from tests.fork_server import context


def run_child(url: str, commits: int, moment: str) -> int:
    child = context.Process(target=thirty_steps.run_and_die, args=(url, commits, moment))
    child.start()
    child.join(timeout=120)
    assert child.exitcode is not None, "the child did not end"
    return int(child.exitcode)


@pytest.mark.parametrize("moment", ["after", "before"])
def test_a_process_killed_at_any_commit_loses_no_step(moment: str, tmp_path: Path) -> None:
    commit = 0
    killed = 0
    while True:
        commit += 1 if moment == "after" else 3
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
    assert killed >= (6 if moment == "after" else 2), "the run should have more commits"


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
