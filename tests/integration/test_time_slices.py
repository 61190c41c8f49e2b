"""A worker goes on with a run for as long as nobody else waits for it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.authoring import event_facet_names
from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store import claims
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker, task_worker
from flowengine.worker.time_slice import TimeSlice
from tests.integration.engines import MovedClock, cut_off, one, opened
from tests.integration.functions.test_kept_functions import begun, counted
from tests.integration.functions.workers import WITH_TASKS, Worked, worked


class Ticks:
    """A clock that goes on by 60 ms whenever it is read: every second reading ends a slice."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.06
        return self.now


@pytest.fixture
def work(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worked]:
    monkeypatch.setattr(task_worker, "TimeSlice", functools.partial(TimeSlice, clock=Ticks()))
    begun.clear()
    with worked(database_url, tmp_path, **WITH_TASKS) as work:
        yield work


@pytest.fixture
def woken(work: Worked, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(work.engine.notifier, "notify", found.append)
    return found


@pytest.mark.each_database
def test_a_worker_goes_on_with_a_function_while_nothing_else_is_due(
    work: Worked, woken: list[Any]
) -> None:
    run = work.start(counted, 8)
    woken.clear()
    work.worker.drain("default")
    assert run.result(timeout=0) == 56
    assert begun == [8]
    assert woken == []


@pytest.mark.each_database
def test_a_due_task_of_another_run_ends_the_slice(work: Worked, woken: list[Any]) -> None:
    runs = [work.start(counted, 8), work.start(counted, 8)]
    woken.clear()
    work.worker.drain("default")
    assert not any(run.info().is_final for run in runs)
    assert {"default": 1} in woken
    work.settle()
    assert [run.result(timeout=0) for run in runs] == [56, 56]


def test_after_ten_slices_a_function_is_left_to_whoever_is_free(
    work: Worked, woken: list[Any]
) -> None:
    run = work.start(counted, 30)
    woken.clear()
    work.worker.drain("default")
    assert not run.info().is_final
    assert woken == [{"default": 1}]
    work.settle()
    assert run.result(timeout=0) == 870


def test_tasks_of_other_lists_do_not_wait_for_this_worker(
    database_url: str, tmp_path: Path
) -> None:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        engine.start(one(), "Flow", {})
        worker = TaskWorker(engine, WorkerIdentity(), event_facet_names, lambda: ["other"])
        assert not worker._others_wait()
        worker = TaskWorker(
            engine, WorkerIdentity(), event_facet_names, lambda: ["other", "default"]
        )
        assert worker._others_wait()
        assert TaskWorker(engine, WorkerIdentity(), event_facet_names)._others_wait()


@pytest.mark.each_database
@pytest.mark.parametrize("lists", [[], ["default", "other"]])
def test_few_tasks_that_are_due_later_do_not_wait_and_many_are_not_read(
    database_url: str, lists: list[str]
) -> None:
    clock = MovedClock()
    with opened(database_url, clock=clock) as engine:
        assert not engine.is_work_due(lists)
        engine.start_many(one(), "Flow", [{}] * 100)
        assert engine.is_work_due(lists)
        clock.now -= 1
        assert not engine.is_work_due(lists)
        engine.start(one(), "Flow", {})
        assert engine.is_work_due(lists), "the first hundred do not tell"


def test_the_query_reads_a_hundred_entries_of_the_index_at_most(on_postgres: Engine) -> None:
    engine = on_postgres
    engine.start_many(one(), "Flow", [{}] * 600)
    queries = [
        (claims._ANY_DUE, {}),
        (engine.database.dialect.ANY_DUE_OF_LISTS, {"lists": ["default", "other"]}),
    ]
    for query, values in queries:
        with engine.database.autocommit() as session:
            rows = session.rows(f"EXPLAIN (ANALYZE, TIMING off) {query}", {"now": 0, **values})
        plan = "\n".join(row[0] for row in rows)
        assert "flowengine_task_due" in plan
        assert "Sort" not in plan
        read = [int(rows) for rows in re.findall(r"actual rows=(\d+)", plan)]
        assert max(read) == 101


def test_a_database_that_cannot_be_asked_ends_the_slice(on_postgres: Engine) -> None:
    engine = on_postgres
    with engine.database.keep_connection():
        assert not engine.is_work_due([])
        cut_off(engine)
        assert engine.is_work_due([])
        assert not engine.is_work_due([]), "it is back"
