"""Code that does not fit the record: the run waits with an alarm, or fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine import event_facet, wait_for, workflow
from flowengine.engine.diverged_runs import try_diverged_again
from flowengine.engine.presentation import status_and_label
from flowengine.engine.results import StepStatus
from flowengine.engine.run_tree import StepLine, load_run_tree
from flowengine.engine.waits_for import WaitKind
from flowengine.errors import RunFailed
from tests.integration.functions import bodies
from tests.integration.functions.workers import WITH_TASKS, Worked, worked

deployed: list[str] = []


@event_facet
def other(n: int) -> int:
    return n


async def body(n: int) -> str:
    called = other if "other facet" in deployed else bodies.double
    if "no call" not in deployed:
        n = await called(n + len(deployed) if "other arguments" in deployed else n)
    return f"{n} {await wait_for('name', str)}"


@workflow
async def waiting(n: int) -> str:
    return await body(n)


@workflow(on_divergence="fail")
async def failing(n: int) -> str:
    return await body(n)


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Worked]:
    deployed.clear()
    with worked(database_url, tmp_path, **WITH_TASKS, kept_functions=0) as work:
        yield work


def deploy(work: Worked, flow: Any, change: str) -> Any:
    """Start a run, deploy other code, and let the run go on."""
    run = work.start(flow, 4)
    work.settle()
    deployed.append(change)
    run.send("name", "ada")
    work.settle()
    return run


@pytest.mark.parametrize("change", ["other facet", "no call"])
def test_a_run_waits_with_an_alarm_until_fitting_code_is_back(work: Worked, change: str) -> None:
    run = deploy(work, waiting, change)
    alarm = run.info().alarm or ""
    assert "call 0" in alarm
    assert "bodies.double" in alarm
    assert "test_divergence.py:" in alarm
    work.pass_time(61)
    assert not run.info().is_final
    show_where_it_waits(work, run)
    deployed.clear()
    work.pass_time(61)
    assert run.result(timeout=0) == "8 ada"
    assert run.info().alarm is None
    assert {task.losses for task in work.engine.tasks(run.id)} == {0}


@pytest.mark.parametrize("is_mended", [True, False])
def test_a_diverged_run_can_be_tried_again_at_once(work: Worked, is_mended: bool) -> None:
    run = deploy(work, waiting, "other facet")
    alarm = run.info().alarm
    assert alarm is not None
    if is_mended:
        deployed.clear()
    try_diverged_again(work.engine)
    assert run.info().alarm is None
    work.settle()
    assert run.info().is_final == is_mended
    assert run.info().alarm == (None if is_mended else alarm)


def show_where_it_waits(work: Worked, run: Any) -> None:
    """Runs, steps, trees and lists say that the function waits for other code."""
    name = f"{waiting.name}@1"
    said = f"diverged: waits for fitting code of {name}"
    found = run.info().waits_for
    assert (found.kind, found.subject) == (WaitKind.DIVERGED, name)
    assert [one.id for one in work.engine.list(waits_for="diverged")] == [run.id]
    with work.engine.database.read() as session:
        now, lines = session.now(), load_run_tree(session, run.id).lines
    step = next(step for step in work.engine.steps(run.id) if step.facet == name)
    line = next(line for line in lines if isinstance(line, StepLine) and line.facet == name)
    for one in (step, line):
        assert status_and_label(one, now) == (StepStatus.DIVERGED, said)
        assert one.waited.circuit == 0
    assert step.waits_for is not None
    assert step.waits_for.kind is WaitKind.DIVERGED
    # Of the last activation; the time until it is checked again is not over.
    assert step.waited.parked >= 60_000


def test_a_function_may_fail_instead(work: Worked) -> None:
    run = deploy(work, failing, "other facet")
    with pytest.raises(RunFailed, match="diverges from its record at call 0"):
        run.result(timeout=0)


def test_other_arguments_are_a_warning_and_the_record_stands(
    work: Worked, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flowengine"):
        run = deploy(work, waiting, "other arguments")
    assert run.result(timeout=0) == "8 ada"
    found = [r for r in caplog.records if getattr(r, "action", "") == "arguments_differ"]
    assert len(found) == 1
