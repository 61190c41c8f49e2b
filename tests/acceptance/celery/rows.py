"""What the rows must say, whatever happened to the workers."""

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
    """How many of these runs are over."""
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


def check_runs(engine: Engine, runs: dict[str, Any], tasks: int | None = None) -> HandledCounters:
    """All complete with the result expected, every step once, every recorded result once."""
    ids = {"ids": list(runs)}
    with engine.database.read() as connection:

        def rows(query: str) -> list[Any]:
            return list(connection.execute(about_runs(query), ids).all())

        infos = {run_id: engine.get(run_id) for run_id in runs}
        unfit = [
            (info.id, info.state, info.outputs, info.error_text, info.alarm)
            for info in infos.values()
            if (info.state, info.outputs) != ("COMPLETED", {"result": runs[info.id]})
        ]
        assert unfit == []
        assert {info.alarm for info in infos.values()} <= {None}
        doubled = rows(
            "SELECT run_id, path, count(*) FROM flowengine_step WHERE run_id IN :ids "
            "AND object_type = 'VariableAssignment' GROUP BY run_id, path HAVING count(*) > 1"
        )
        assert doubled == []
        open_steps = rows(
            "SELECT run_id, path, state FROM flowengine_step WHERE run_id IN :ids "
            "AND object_type = 'VariableAssignment' AND state <> 'state.statement.Complete'"
        )
        assert open_steps == []
        recorded = rows(
            "SELECT run_id, step_id, count(*) FROM flowengine_task "
            "WHERE run_id IN :ids AND state = 'completed' GROUP BY run_id, step_id"
        )
        assert {count for _, _, count in recorded} == {1}
        if tasks is not None:
            assert len(recorded) == tasks * len(runs)
        unfinished = rows(
            "SELECT step_path, state FROM flowengine_task WHERE run_id IN :ids "
            "AND (state IN ('pending', 'running') OR NOT taken_in)"
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
