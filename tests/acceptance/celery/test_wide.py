"""A wide fan-out and its join: small messages, little memory, one evaluation."""

from __future__ import annotations

import psutil
import pytest
from sqlalchemy import text

from tests.acceptance.celery import graphs
from tests.acceptance.celery.rows import check_runs, wait_for
from tests.celery_nodes import Fleet


def megabytes(pids: list[int]) -> dict[int, float]:
    return {pid: psutil.Process(pid).memory_info().rss / 1e6 for pid in pids}


@pytest.mark.parametrize("width", [600, pytest.param(2_000, marks=pytest.mark.chaos)])
def test_many_tasks_are_joined_by_a_chords_callback(fleet: Fleet, width: int) -> None:
    warm = fleet.start(graphs.wide, numbers=list(range(300)))
    wait_for(fleet.engine, [warm], 60)
    children = [pid for worker in fleet.workers for pid in worker.children()]
    processes = [psutil.Process().pid, *(worker.pid for worker in fleet.workers), *children]
    before = megabytes(processes)
    evaluated = fleet.count_logged("flowengine.evaluate")

    run = fleet.start(graphs.wide, numbers=list(range(width)))
    wait_for(fleet.engine, [run], 120)

    check_runs(fleet.engine, {run.id: sum(n * n for n in range(width))}, width + 1)
    after = megabytes(processes)
    grown = {pid: round(after[pid] - before[pid], 1) for pid in processes}
    assert max(grown.values()) < 60, grown
    assert fleet.count_logged("flowengine.evaluate") > evaluated, "by a chord's callback"
    with fleet.engine.database.read() as connection:
        query = text(
            "SELECT count(*) FROM flowengine_history WHERE run_id = :run "
            "AND summary LIKE '%Report%'"
        )
        evaluations = connection.execute(query, {"run": run.id}).scalar_one()
    # Each consumes up to a hundred reports; one by one there would be one for each.
    assert evaluations <= width // 20, evaluations
