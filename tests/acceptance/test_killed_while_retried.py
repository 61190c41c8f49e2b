"""SIGKILL at every commit of a run that is retried: no completed step runs again, none is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from flowengine.store import Database, ensure_schema
from tests.acceptance import retried_run
from tests.fork_server import context
from tests.servers import PostgresServer


def run_retried_child(url: str, healed: Path, commits: int, moment: str) -> int:
    arguments = (url, commits, moment, str(healed))
    child = context.Process(target=retried_run.run_and_die, args=arguments)
    child.start()
    child.join(timeout=120)
    assert child.exitcode is not None, "the child did not end"
    return int(child.exitcode)


@pytest.mark.parametrize(
    ("kind", "moment", "stride"),
    [
        ("sqlite", "after", 6),  # on a busy machine one commit has the reports of several items
        *(
            pytest.param(kind, moment, 1, marks=pytest.mark.chaos)
            for kind in ("sqlite", "postgresql")
            for moment in ("after", "before")
        ),
    ],
)
def test_a_process_killed_at_any_commit_of_a_retried_run_loses_nothing(
    kind: str, moment: str, stride: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres: PostgresServer | None = None
    if kind == "postgresql":
        postgres = request.getfixturevalue("postgres")
    commit, killed = 0, 0
    while True:
        commit += stride
        url = postgres.new_database() if postgres else f"sqlite:///{tmp_path}/{commit}.db"
        if postgres:
            upgrade(url)
        healed = tmp_path / f"{commit}.healed"
        exitcode = run_retried_child(url, healed, commit, moment)
        if exitcode == 0:
            break  # the run has fewer commits than that
        assert exitcode == -9
        killed += 1
        assert run_retried_child(url, healed, 0, moment) == 0, f"killed {moment} commit {commit}"
        check_retried_rows(url)
        if postgres:
            postgres.drop_database(url)
    print(f"{kind}, killed {moment} each of {killed} commits")
    # A PostgreSQL commit may hold the reports of all five items.
    assert killed >= (1 if stride > 1 else 4 if postgres else 10), "there should be more commits"


def upgrade(url: str) -> None:
    database = Database(url)
    ensure_schema(database, upgrade=True)
    database.close()


def check_retried_rows(url: str) -> None:
    """Of each step one row is current, and completed; a completed step was not run again."""
    database = Database(url)
    with database.read() as session:

        def rows(query: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in session.connection.execute(text(query))]

        ((state, outputs),) = rows("SELECT state, outputs FROM flowengine_run")
        assert (state, json.loads(outputs)) == ("COMPLETED", {"result": retried_run.EXPECTED})
        current = rows("SELECT key, state FROM flowengine_step WHERE NOT superseded")
        assert len({key for key, _ in current}) == len(current)
        assert {state for _, state in current} == {"state.statement.Complete"}
        weighed = rows(
            "SELECT generation, superseded FROM flowengine_step WHERE facet_name LIKE '%.weigh'"
        )
        assert weighed == [(0, False)] * 5, "a completed step was run again"
        doubled = rows(
            "SELECT step_id FROM flowengine_task WHERE state = 'completed' GROUP BY step_id "
            "HAVING count(*) > 1"
        )
        assert doubled == []
        unfinished = rows(
            "SELECT step_id FROM flowengine_task "
            "WHERE state IN ('pending', 'running') OR NOT taken_in"
        )
        assert unfinished == []
    database.close()
