"""SIGKILL at every commit of a run that is retried: no completed step runs again, none is lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.acceptance import retried_run
from tests.fork_server import context


def run_retried_child(path: Path, commits: int, moment: str) -> int:
    arguments = (f"sqlite:///{path}", commits, moment, str(path.with_suffix(".healed")))
    child = context.Process(target=retried_run.run_and_die, args=arguments)
    child.start()
    child.join(timeout=120)
    assert child.exitcode is not None, "the child did not end"
    return int(child.exitcode)


@pytest.mark.parametrize(
    ("moment", "stride"),
    [("after", 8), *(pytest.param(m, 1, marks=pytest.mark.chaos) for m in ("after", "before"))],
)
def test_a_process_killed_at_any_commit_of_a_retried_run_loses_nothing(
    moment: str, stride: int, tmp_path: Path
) -> None:
    commit, killed = 0, 0
    while True:
        commit += stride
        path = tmp_path / f"{commit}.db"
        exitcode = run_retried_child(path, commit, moment)
        if exitcode == 0:
            break  # the run has fewer commits than that
        assert exitcode == -9
        killed += 1
        assert run_retried_child(path, 0, moment) == 0, f"killed {moment} commit {commit}"
        check_retried_rows(path)
    assert killed >= (10 if stride == 1 else 1), "the run should have more commits"


def check_retried_rows(path: Path) -> None:
    """Of each step one row is current, and completed; a completed step was not run again."""
    rows = sqlite3.connect(path)
    runs = rows.execute("SELECT state, outputs FROM flowengine_run").fetchall()
    assert runs == [("COMPLETED", f'{{"result":{retried_run.EXPECTED}}}')]
    current = rows.execute("SELECT key, state FROM flowengine_step WHERE NOT superseded").fetchall()
    assert len({key for key, _ in current}) == len(current)
    assert {state for _, state in current} == {"state.statement.Complete"}
    weighed = rows.execute(
        "SELECT generation, superseded FROM flowengine_step WHERE facet_name LIKE '%.weigh'"
    ).fetchall()
    assert weighed == [(0, 0)] * 5, "a completed step was run again"
    doubled = rows.execute(
        "SELECT step_id FROM flowengine_task WHERE state = 'completed' GROUP BY step_id "
        "HAVING count(*) > 1"
    ).fetchall()
    assert doubled == []
    unfinished = rows.execute(
        "SELECT count(*) FROM flowengine_task WHERE state IN ('pending', 'running') OR NOT taken_in"
    ).fetchone()
    assert unfinished == (0,)
    rows.close()
