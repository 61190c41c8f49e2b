"""Kept coroutines: the process that ran an activation goes on without a replay."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine import workflow
from flowengine.evaluator.triggers import Lost
from tests.integration.functions import bodies
from tests.integration.functions.workers import WITH_TASKS, Worked, worked

begun: list[int] = []


@workflow
async def counted(count: int) -> int:
    begun.append(count)
    n = 0
    for number in range(count):
        n += await bodies.double(number)
    return n


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Worked]:
    begun.clear()
    with worked(database_url, tmp_path, **WITH_TASKS) as work:
        yield work


def test_the_body_is_run_once_by_a_process_that_keeps_its_coroutine(work: Worked) -> None:
    assert work.run(counted, 6) == 30
    assert begun == [6]
    assert len(work.worker._tries.kept_functions) == 0


def test_another_process_replays_the_record(
    database_url: str, tmp_path: Path, work: Worked
) -> None:
    run = work.start(counted, 4)
    with worked(database_url, tmp_path, **WITH_TASKS) as other:
        # Each runs an activation and the call that it made.
        workers = itertools.cycle([work.worker, work.worker, other.worker, other.worker])
        while not run.info().is_final:
            next(workers).poll("default", 1)
    assert run.result(timeout=0) == 12
    assert len(begun) == 5


def test_a_coroutine_whose_report_was_refused_is_dropped(work: Worked) -> None:
    run = work.start(counted, 3)
    lost: list[str] = []
    report_many = work.engine.report_many

    def after_a_loss(reports, **options):  # type: ignore[no-untyped-def]
        task = reports[0].task
        if task.data_type and not lost:
            lost.append(task.uuid)
            work.engine.end_try(task.workflow_id, task.uuid, task.lease, Lost("said the watchdog"))
        return report_many(reports, **options)

    work.engine.report_many = after_a_loss  # type: ignore[method-assign]
    work.settle()
    work.settle()
    assert run.result(timeout=0) == 6
    assert begun == [3, 3]


def test_no_more_coroutines_are_kept_than_the_setting_says(
    database_url: str, tmp_path: Path
) -> None:
    with worked(database_url, tmp_path, **WITH_TASKS, kept_functions=2) as work:
        runs = [work.start(bodies.asks, f"name {number}") for number in range(5)]
        work.settle()
        assert len(work.worker._tries.kept_functions) == 2
        for number, run in enumerate(runs):
            run.send(f"name {number}", str(number))
        work.settle()
        assert [run.result(timeout=0) for run in runs] == ["0", "1", "2", "3", "4"]
