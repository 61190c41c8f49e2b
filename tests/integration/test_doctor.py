"""Doctor: each invariant is found when it is violated, and restored where that is possible."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import event_facet, foreach, sleep, wait_for, workflow
from flowengine.engine import Run
from flowengine.engine.doctor import Diagnosis
from flowengine.testing import Flow


@event_facet(name="doctor.work")
def work(n: int) -> int:
    return n


@workflow(name="doctor.one")
def one(n: int) -> int:
    return work(n)


@workflow(name="doctor.fan")
def fan(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: work(n))


@workflow(name="doctor.naps")
def naps() -> str:
    return sleep(60)


@workflow(name="doctor.asks")
def asks() -> int:
    return wait_for("size", int)


@workflow(name="doctor.parent")
def parent(n: int) -> int:
    return one.start(n).result()


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def change(flow: Flow, sql: str, **values: Any) -> None:
    with flow.database.write() as session:
        assert session.connection.execute(text(sql), values).rowcount


def check(flow: Flow, *, repair: bool = False) -> dict[str, Diagnosis]:
    found = flow.engine.doctor(repair=repair, older_than=timedelta(seconds=-1))
    return {one.invariant: one for one in found}


def started(flow: Flow) -> list[Run[Any]]:
    return [one.start(1), fan.start(list(range(20))), naps.start(), asks.start(), parent.start(2)]


def test_healthy_runs_violate_nothing_at_any_time(flow: Flow) -> None:
    runs = started(flow)
    assert check(flow) == {}
    flow.settle()
    assert check(flow) == {}
    flow.clock.advance(seconds=60)
    flow.watchdog()
    runs[3].send("size", 3)
    flow.settle()
    assert all(run.info().is_final for run in runs)
    assert check(flow) == {}
    flow.engine.purge(older_than=0)
    assert check(flow) == {}


BROKEN: dict[str, tuple[str, bool]] = {
    "an open run has something outstanding": (
        "UPDATE flowengine_run SET open_steps = 0 WHERE id = :run",
        False,
    ),
    "open_steps counts the steps at their event": (
        "UPDATE flowengine_run SET open_steps = 7 WHERE id = :run",
        False,
    ),
    "a step at its event has a task, a timer or a mailbox": (
        "DELETE FROM flowengine_task WHERE run_id = :run",
        False,
    ),
    "an ended run has no open task": (
        "UPDATE flowengine_run SET state = 'FAILED', finished = 1 WHERE id = :run",
        True,
    ),
    "an open task has a step that waits for it": (
        "UPDATE flowengine_step SET state = 'state.statement.Complete' "
        "WHERE run_id = :run AND facet_name = 'doctor.work'",
        True,
    ),
    "the history has every revision": (
        "DELETE FROM flowengine_history WHERE run_id = :run",
        False,
    ),
    "an ended run has the time of its end, an open one has none": (
        "UPDATE flowengine_run SET finished = 5 WHERE id = :run",
        False,
    ),
    "a run has its program": ("DELETE FROM flowengine_program WHERE :run <> ''", False),
    "rows of step belong to a run": ("DELETE FROM flowengine_run WHERE id = :run", True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_violated_invariant_is_found(flow: Flow, name: str) -> None:
    statement, can_be_repaired = BROKEN[name]
    run = one.start(1)
    change(flow, statement, run=run.id)
    found = check(flow)
    assert name in found, found
    assert not found[name].is_repaired
    assert check(flow).keys() == found.keys(), "without repair=True nothing is changed"
    if can_be_repaired:
        assert found[name].repair
        assert check(flow, repair=True)[name].is_repaired
        assert name not in check(flow)


def test_a_lost_wake_up_of_the_evaluator_is_repaired(flow: Flow) -> None:
    run = one.start(1)
    worker = flow.worker("one")
    task = worker.claim(run, "work")
    with flow.database.write() as session:  # recorded, and the process died
        from flowengine.evaluator.triggers import Report, Succeeded

        assert session.reports.record([Report(task, Succeeded({"result": 1}))], session.now())
    assert "a report is evaluated" in check(flow)
    assert check(flow, repair=True)["a report is evaluated"].is_repaired
    assert run.result(timeout=0) == 1
    assert check(flow) == {}


def test_a_timer_that_did_not_fire_is_fired(flow: Flow) -> None:
    run = naps.start()
    flow.clock.advance(seconds=61)
    assert check(flow, repair=True)["a due timer has fired"].is_repaired
    assert run.info().state == "COMPLETED"


def test_a_lost_answer_of_a_child_run_is_reported_again(flow: Flow) -> None:
    run = parent.start(2)
    flow.settle()
    assert run.state == "COMPLETED"
    name = "a step does not wait for a run that has ended"
    assert name not in check(flow)
    run = parent.start(3)
    worker = flow.worker("one")
    worker.work_on(worker.claim(run, "one"))
    (child,) = flow.engine.list(parent=run.id)
    sql = "UPDATE flowengine_run SET waiting_step_key = NULL WHERE id = :id"  # loses the parent
    with flow.database.read() as session:
        query = text("SELECT waiting_step_key FROM flowengine_run WHERE id = :id")
        key = session.connection.execute(query, {"id": child.id}).scalar()
    change(flow, sql, id=child.id)
    flow.settle()
    restore = "UPDATE flowengine_run SET waiting_step_key = :key WHERE id = :id"
    change(flow, restore, id=child.id, key=key)
    assert flow.engine.get(child.id).state == "COMPLETED"
    assert run.state == "RUNNING"
    assert check(flow, repair=True)[name].is_repaired
    assert run.result(timeout=0) == 3
