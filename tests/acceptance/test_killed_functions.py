"""SIGKILL at every commit of a durable function: the same result, and no call recorded twice."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text

from flowengine.store import Database, codec
from tests.acceptance import killed_functions
from tests.acceptance.test_killed_at_every_commit import run_child
from tests.servers import PostgresServer

#: With the number N the process is killed at one in N commits; in the chaos run at each.
KILLS = [
    ("sqlite", "in-place", "after", 13),
    ("postgresql", "tasks", "before", 19),
    ("sqlite", "interleaved", "before", 23),
    ("postgresql", "interleaved", "after", 19),
    *(
        pytest.param((database, kind, moment, 1), marks=pytest.mark.chaos)
        for database in ("sqlite", "postgresql")
        for kind in ("in-place", "tasks", "interleaved")
        for moment in ("after", "before")
    ),
]


@pytest.mark.parametrize("given", KILLS, ids=lambda given: "-".join(map(str, given)))
def test_a_function_that_is_killed_at_any_commit_ends_with_the_same_result(
    given: tuple[str, str, str, int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database, kind, moment, stride = given
    commit = killed = 0
    while True:
        commit += stride
        url = f"sqlite:///{tmp_path}/{commit}.db"
        if database == "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            url = postgres.new_database(request.getfixturevalue("with_schema"))
        place = f"{kind}|{url}|{tmp_path}/{commit}.executions"
        exitcode = run_child(place, commit, moment, killed_functions.run_and_die)
        if exitcode == 0:
            break  # the run has fewer commits than that
        assert exitcode == -9
        killed += 1
        again = run_child(place, 0, moment, killed_functions.run_and_die)
        assert again == 0, f"killed {moment} commit {commit}"
        names = killed_functions.NAMES if kind == "interleaved" else killed_functions.NAMES[:1]
        check_rows(url, len(names))
        check_executions(tmp_path / f"{commit}.executions", len(names))
    print(f"{database}, {kind}: killed {moment} {killed} commits")
    assert killed >= 2, "the run should have more commits"


def check_rows(url: str, count: int) -> None:
    """The runs are completed; every number of a function is there once; nothing is open."""
    database = Database(url)
    with database.read() as session:

        def rows(query: str) -> list[tuple[object, ...]]:
            return [tuple(row) for row in session.connection.execute(text(query))]

        runs = rows("SELECT state, outputs FROM flowengine_run")
        calls = rows(
            "SELECT run_id, position FROM flowengine_step WHERE object_type = 'FunctionCall'"
        )
        steps = rows("SELECT DISTINCT state FROM flowengine_step")
        left = rows(
            "SELECT uuid FROM flowengine_task WHERE state IN ('pending', 'running') OR NOT taken_in"
        )
        facts = rows("SELECT id FROM flowengine_fact WHERE NOT taken_in")
        timers = rows("SELECT id FROM flowengine_timer WHERE fired IS NULL")
    database.close()
    assert len(runs) == count
    for state, outputs in runs:
        assert state == "COMPLETED"
        assert codec.attributes(str(outputs)) == {"result": killed_functions.EXPECTED}
    for run_id in {run_id for run_id, _ in calls}:
        numbers = [number for of_run, number in calls if of_run == run_id]
        assert sorted(map(int, map(str, numbers))) == list(range(len(numbers)))
    assert {one for (one,) in steps} <= {
        "state.statement.Complete",
        "state.statement.Error",
        "state.statement.Cancelled",
        "mailbox.Waiting",
    }
    assert left == []
    assert facts == []
    assert timers == []


def check_executions(place: Path, count: int) -> None:
    """A death repeats the calls that were not recorded: once each, and few of each function."""
    os.environ["EXECUTIONS"] = str(place)
    found: Counter[str] = killed_functions.executions()
    del os.environ["EXECUTIONS"]
    repeated = {call: count for call, count in found.items() if count > 1}
    assert set(repeated.values()) <= {2}
    of_runs = Counter(call.partition(" ")[0] for call in repeated)
    assert len(of_runs) <= count
    assert all(number <= killed_functions.WIDTH + 1 for number in of_runs.values())


@pytest.mark.each_database
def test_a_function_that_kills_its_process_makes_no_other_one_lost(
    database_url: str, tmp_path: Path
) -> None:
    place = f"interleaved|{database_url}|{tmp_path}/executions"
    target = killed_functions.run_beside_a_killer
    assert run_child(place, 0, "", target) == -9
    database = Database(database_url)
    query = text(
        "SELECT t.losses, count(*) FROM flowengine_task t JOIN flowengine_run r ON r.id = t.run_id "
        "WHERE r.workflow LIKE '%counts%' GROUP BY t.losses ORDER BY t.losses"
    )
    held = text("SELECT count(*) FROM flowengine_task WHERE state = 'running'")
    with database.read() as session:
        claimed = session.connection.execute(held).scalar_one()
    assert claimed == len(killed_functions.NAMES), "they should be claimed together"
    assert run_child(place, 0, "", target) == 0
    with database.read() as session:
        losses = {row[0]: row[1] for row in session.connection.execute(query)}
    database.close()
    assert losses[1] == 1
    assert set(losses) == {0, 1}
