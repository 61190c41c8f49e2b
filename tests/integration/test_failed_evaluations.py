"""A run that the evaluator cannot evaluate has an alarm, and goes on with repaired code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowengine import event_facet, workflow
from flowengine.authoring import event_facet_names
from flowengine.cli.commands import main
from flowengine.engine import Engine, staging
from flowengine.engine.recovery import evaluate_reported_runs
from flowengine.errors import FlowengineError
from flowengine.evaluator import TaskState, evaluate
from flowengine.evaluator.triggers import Succeeded
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.parts import MANY
from flowengine.worker import TaskWorker
from flowengine.worker.spool import Spool
from tests.integration.engines import opened

ME = WorkerIdentity("s", "b" * 32, 1)
ERRORS = [
    AssertionError("run x lacks the row y"),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    FlowengineError("a defect"),
]


@event_facet(name="unevaluated.double")
def double(n: int) -> int:
    return 2 * n


@workflow(name="unevaluated.twice")
def twice(n: int) -> int:
    return double(double(n))


@event_facet(name="unevaluated.delegate")
def delegate(n: int) -> int:
    return twice.call(n)


@workflow(name="unevaluated.delegated")
def delegated(n: int) -> int:
    return delegate(n)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(database_url=database_url, spool_directory=str(tmp_path))


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    with opened(settings.database_url, settings=settings) as engine:
        yield engine


def worker_of(engine: Engine) -> TaskWorker:
    worker = TaskWorker(engine, ME, event_facet_names)
    worker._background.begin = lambda: None  # type: ignore[method-assign]
    return worker


def drain(engine: Engine) -> None:
    worker = worker_of(engine)
    while worker.drain("default"):
        pass


class Broken:
    """An evaluator that fails for some runs, and counts its calls for them."""

    def __init__(self, error: Exception, *run_ids: str) -> None:
        self.error, self.run_ids, self.calls = error, set(run_ids), 0

    def __call__(self, plan: Any, run: Any, *given: Any, **options: Any) -> Any:
        if run.id in self.run_ids or not self.run_ids:
            self.calls += 1
            raise self.error
        return evaluate(plan, run, *given, **options)


def start(engine: Engine, a_workflow: Any = twice) -> Any:
    return engine.start(a_workflow.program(), a_workflow.name, {"n": 3})


def alarm_of(engine: Engine, run: Any) -> str:
    return engine.get(run.id).alarm or ""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_report_that_cannot_be_evaluated_raises_an_alarm_and_is_delivered_later(
    error: Exception, engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = start(engine), start(engine)
    broken = Broken(error, run.id)
    monkeypatch.setattr(staging, "evaluate", broken)
    drain(engine)
    assert other.result(timeout=0) == 12, "other runs go on"
    spool = Spool(settings.spool_directory)
    for _ in range(settings.max_failed_evaluations):
        assert spool.deliver(engine) == 0
    alarm = alarm_of(engine, run)
    assert alarm.startswith(f"cannot be evaluated: {type(error).__name__}"), alarm
    assert str(error) in alarm
    assert "restart the processes" in alarm
    assert not engine.get(run.id).is_final
    environment = {"FLOWENGINE_DATABASE_URL": settings.database_url, "COLUMNS": "400"}
    for command in (["list"], ["show", run.id]) if error is ERRORS[0] else ():
        shown = CliRunner().invoke(main, command, env=environment).output
        assert "cannot be evaluated" in shown, command
    monkeypatch.undo()
    assert spool.deliver(engine) == 1
    drain(engine)
    assert run.result(timeout=0) == 12
    assert engine.get(run.id).alarm is None
    assert len(engine.failed_evaluations) == 0
    tries = {(task.state, task.try_number, task.losses) for task in engine.tasks(run.id)}
    assert tries == {(TaskState.COMPLETED, 1, 0)}, "no step ran twice"


def test_recovery_raises_the_alarm_and_evaluates_less_often(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(engine)
    (task,) = engine.claim(["unevaluated.double"], "default", ME, most=1)
    assert engine.record(task, Succeeded({"result": 6}))
    broken = Broken(ERRORS[0])
    monkeypatch.setattr(staging, "evaluate", broken)
    for number in range(1, settings.max_failed_evaluations + 1):
        assert alarm_of(engine, run) == ""
        evaluate_reported_runs(engine)
        assert broken.calls == number
    assert alarm_of(engine, run).startswith("cannot be evaluated: AssertionError")
    evaluate_reported_runs(engine)
    assert broken.calls == settings.max_failed_evaluations, "it waits before it evaluates again"
    monkeypatch.undo()
    with opened(settings.database_url, settings=settings) as repaired:
        evaluate_reported_runs(repaired)
        assert alarm_of(repaired, run) == "", "a new process evaluates at once"
        drain(repaired)
        assert run.result(timeout=0) == 12


def test_a_child_run_that_cannot_be_evaluated_raises_an_alarm_on_its_parent(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(engine, delegated)
    monkeypatch.setattr(staging, "evaluate", Broken(ERRORS[0]))
    drain(engine)
    spool = Spool(settings.spool_directory)
    for _ in range(settings.max_failed_evaluations):
        assert spool.deliver(engine) == 0
    assert alarm_of(engine, run).startswith("cannot be evaluated: AssertionError")
    monkeypatch.undo()
    assert spool.deliver(engine) == 1
    drain(engine)
    assert run.result(timeout=0) == 12
    assert engine.get(run.id).alarm is None


def test_runs_that_cannot_be_evaluated_hide_no_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [start(engine) for _ in range(3)]
    for task in engine.claim(["unevaluated.double"], "default", ME, most=3):
        assert engine.record(task, Succeeded({"result": 6}))
    first, second, third = sorted(run.id for run in runs)
    monkeypatch.setattr(staging, "evaluate", Broken(ERRORS[0], first, second))
    monkeypatch.setattr("flowengine.engine.recovery.MANY", 2)
    assert MANY > 2
    for _ in range(2):
        evaluate_reported_runs(engine)
    assert [task.step_path for task in engine.tasks(third)][1:], "it has gone on"


def test_an_outage_is_no_failed_evaluation(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(engine)
    monkeypatch.setattr(staging, "evaluate", Broken(ConnectionResetError("the database")))
    drain(engine)
    spool = Spool(settings.spool_directory)
    for _ in range(2 * settings.max_failed_evaluations):
        spool.deliver(engine)
    monkeypatch.undo()
    assert alarm_of(engine, run) == ""
    assert len(engine.failed_evaluations) == 0
