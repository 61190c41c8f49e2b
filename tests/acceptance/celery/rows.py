"""The invariants of the rows, whatever happened to the workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import TextClause, bindparam, text

from flowengine.engine import Engine, Run
from tests.celery_nodes import until


@dataclass(frozen=True)
class HandledCounters:
    """How the tries of some runs ended."""

    succeeded: int
    lost: int
    failed: int


def about_runs(query: str) -> TextClause:
    """Make a statement that is given `ids`, for any database."""
    return text(query).bindparams(bindparam("ids", expanding=True))


def ended(engine: Engine, runs: Iterable[Run[Any]]) -> int:
    """How many of these runs have ended."""
    query = about_runs("SELECT count(*) FROM flowengine_run WHERE id IN :ids AND finished > 0")
    with engine.database.read() as connection:
        return int(connection.execute(query, {"ids": [run.id for run in runs]}).scalar_one())


def wait_for(engine: Engine, runs: Sequence[Run[Any]], seconds: float) -> None:
    until(
        lambda: ended(engine, runs) == len(runs),
        f"the end of {len(runs)} runs",
        seconds=seconds,
        pause=0.1,
    )


def runs_below(engine: Engine, ids: list[str]) -> list[str]:
    """The ids of these runs and of all their child runs."""
    query = about_runs("SELECT id FROM flowengine_run WHERE parent_run_id IN :ids")
    found, level = list(ids), list(ids)
    with engine.database.read() as connection:
        while level:
            level = list(connection.execute(query, {"ids": level}).scalars())
            found += level
    return found


def check_runs(engine: Engine, runs: dict[str, Any], tasks: int | None = None) -> HandledCounters:
    """All are completed with the result expected, and their rows are as they must be."""
    infos = {run_id: engine.get(run_id) for run_id in runs}
    otherwise = [
        (info.id, info.state, info.outputs, info.error_text, info.alarm)
        for info in infos.values()
        if (info.state, info.outputs) != ("COMPLETED", {"result": runs[info.id]})
    ]
    assert otherwise == []
    with engine.database.read() as connection:
        failed = about_runs(
            "SELECT run_id, path, state FROM flowengine_step WHERE run_id IN :ids "
            "AND object_type = 'VariableAssignment' AND state <> 'state.statement.Complete'"
        )
        assert connection.execute(failed, {"ids": list(runs)}).all() == []
    return check_rows(engine, list(runs), tasks)


def check_rows(engine: Engine, ids: list[str], tasks: int | None = None) -> HandledCounters:
    """Runs that ended: each step has one current row and is final, each result is recorded once.

    `tasks` is the number of results that each run has recorded.
    """
    with engine.database.read() as connection:

        def rows(query: str) -> list[Any]:
            return list(connection.execute(about_runs(query), {"ids": ids}).all())

        alarms = rows("SELECT id, alarm FROM flowengine_run WHERE id IN :ids AND alarm IS NOT NULL")
        assert alarms == []
        doubled = rows(
            "SELECT run_id, path, count(*) FROM flowengine_step WHERE run_id IN :ids "
            "AND object_type = 'VariableAssignment' AND NOT superseded "
            "GROUP BY run_id, path HAVING count(*) > 1"
        )
        assert doubled == []
        open_steps = rows(
            "SELECT run_id, path, state FROM flowengine_step WHERE run_id IN :ids "
            "AND object_type = 'VariableAssignment' AND NOT superseded AND state NOT IN "
            "('state.statement.Complete', 'state.statement.Error', 'state.statement.Skipped', "
            "'state.statement.Cancelled')"
        )
        assert open_steps == []
        recorded = rows(
            "SELECT run_id, step_id, count(*) FROM flowengine_task "
            "WHERE run_id IN :ids AND state = 'completed' GROUP BY run_id, step_id"
        )
        assert {count for _, _, count in recorded} <= {1}
        if tasks is not None:
            assert len(recorded) == tasks * len(ids)
        unfinished = rows(
            "SELECT step_path, state FROM flowengine_task WHERE run_id IN :ids "
            "AND (state IN ('pending', 'running') OR NOT taken_in AND state <> 'ignored')"
        )
        assert unfinished == []
        histories = rows(
            "SELECT h.run_id FROM flowengine_history h JOIN flowengine_run r ON r.id = h.run_id "
            "WHERE r.id IN :ids GROUP BY h.run_id, r.revision HAVING count(*) <> r.revision"
        )
        assert histories == []
        outcomes = dict(
            rows(
                "SELECT outcome, count(*) FROM flowengine_task WHERE run_id IN :ids "
                "GROUP BY outcome"
            )
        )
    return HandledCounters(
        succeeded=outcomes.get("succeeded", 0),
        lost=outcomes.get("lost", 0),
        failed=outcomes.get("failed", 0) + outcomes.get("final", 0),
    )
