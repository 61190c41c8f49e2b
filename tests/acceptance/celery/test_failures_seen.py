"""Failures, alarms and lost tries are in the logs of real workers, each once."""

from __future__ import annotations

import re

from flowengine import event_facet, workflow
from tests.acceptance.celery import graphs
from tests.celery_nodes import Fleet, until


@event_facet(name="unknown.step", task_list="default")
def step_of_nobody(n: int) -> int:
    return n


@workflow(name="unknown.flow")
def flow_of_nobody(n: int) -> int:
    return step_of_nobody(n)


def lines(fleet: Fleet, *parts: str) -> list[str]:
    return [line for line in fleet.logs().splitlines() if all(part in line for part in parts)]


def test_a_run_that_fails_with_its_killed_worker_is_one_error_line_over_all_processes(
    fleet: Fleet,
) -> None:
    run = fleet.start(graphs.held_once, name="seen")
    (pid,) = until(lambda: fleet.begun("seen"), "the start of the step")
    (victim,) = [worker for worker in fleet.workers if pid in worker.children()]
    victim.kill()
    until(lambda: run.info().is_final, "the end of the run")
    found = until(lambda: lines(fleet, f"run {run.id} of", "failed in"), "the line")
    victim.start()
    after = fleet.start(graphs.mixed, n=1)
    assert after.result(timeout=30) == graphs.expected(1)  # others have passed meanwhile
    assert len(lines(fleet, f"run {run.id} of", "failed in")) == 1
    assert re.search(
        rf"ERROR.*run {run.id} of {graphs.held_once.name} failed in held_once.hold_once: "
        rf"WorkerLost: .*\(pid {pid}\) that ran held_once.hold_once died",
        found[0],
    )
    (lost,) = lines(fleet, "held_once.hold_once was lost", run.id, "WARNING")
    assert lost.endswith(f"died (try 1 of run {run.id}, no traceback)")


def test_a_try_that_raises_in_a_pool_child_is_a_warning_with_its_traceback(fleet: Fleet) -> None:
    run = fleet.start(graphs.unfinished, n=7)  # the next try is due in an hour
    (line,) = until(lambda: lines(fleet, "failed:", f"of run {run.id})"), "the warning")
    assert "WARNING" in line
    assert lines(fleet, "graphs.py", "in fail_once"), fleet.logs()[-3000:]
    run.cancel()


def test_a_try_that_times_out_is_a_warning_that_says_so(fleet: Fleet) -> None:
    run = fleet.start(graphs.hanging, name="silent")
    until(lambda: run.info().is_final, "the end of the run")
    (line,) = until(
        lambda: lines(fleet, "hanging.hang failed:", f"of run {run.id},"), "the warning"
    )
    assert "WARNING" in line
    assert "Timeout: no activity for more than its timeout of 1 s (try 1" in line
    assert line.endswith("no traceback)")
    assert len(lines(fleet, "ERROR", f"run {run.id} of", "failed in hanging.hang")) == 1


def test_an_alarm_is_one_warning_of_the_fleet(fleet: Fleet) -> None:
    run = fleet.start(flow_of_nobody, n=1)
    until(lambda: run.info().alarm, "the alarm")
    (line,) = until(lambda: lines(fleet, "alarm of run", run.id), "the line")
    assert "WARNING" in line
    assert "waits for a worker of task list 'default'" in line
    passes = fleet.count_logged("Task flowengine.watchdog[")
    until(
        lambda: fleet.count_logged("Task flowengine.watchdog[") > passes + 8, "more recovery passes"
    )
    assert run.info().alarm
    assert len(lines(fleet, "alarm of run", run.id)) == 1
    run.cancel()
