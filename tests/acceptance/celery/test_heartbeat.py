"""The heartbeat of a Celery worker, and its checks of its pool children."""

from __future__ import annotations

import os
from typing import Any

import pytest
import redis

from flowengine.errors import RunCancelled, RunFailed
from tests.acceptance.celery import graphs, rare
from tests.acceptance.celery.mixed_load import start_mixed, wait_and_check
from tests.builders import block, event, namespace, program, schema, step, to, workflow
from tests.celery_nodes import Fleet
from tests.celery_nodes.fleet import until


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_pool_child_that_hangs_is_killed_and_another_takes_its_place(fleet: Fleet) -> None:
    run = fleet.start(graphs.hanging, name="forever")
    (pid,) = until(lambda: fleet.begun("forever"), "its begin")
    with pytest.raises(RunFailed, match="no activity for more than its timeout of 1 s"):
        run.result(timeout=20)
    until(lambda: not is_running(pid), "the end of the process that hung")
    assert [t.losses for t in fleet.engine.tasks(run.id)] == [0], "it failed, nothing was lost"
    wait_and_check(fleet, start_mixed(fleet, 3))
    assert all(worker.is_alive() for worker in fleet.workers)


def test_a_pool_child_that_goes_on_with_a_cancelled_try_is_killed(fleet: Fleet) -> None:
    run = fleet.start(graphs.held, name="cancelled")
    (pid,) = until(lambda: fleet.begun("cancelled"), "its begin")
    run.cancel(reason="no longer needed")
    with pytest.raises(RunCancelled, match="no longer needed"):
        run.result(timeout=20)
    until(lambda: not is_running(pid), "the end of the process that ran it")
    assert fleet.begun("cancelled") == [pid], "no other process runs it"
    wait_and_check(fleet, start_mixed(fleet, 3))


@pytest.mark.chaos
def test_a_timeout_ends_the_validation_of_a_result_with_its_process(fleet: Fleet) -> None:
    defs: dict[str, Any] = {"d0": {"items": {"type": "integer"}}}
    for level in range(1, 45):  # each level checks the value twice as often as the one below
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {"allOf": [below, below]}
    endless = {"name": "y", "type": "Json", "schema": {"$defs": defs, "$ref": "#/$defs/d44"}}
    options = {"timeout": 1, "task_list": "checked"}
    described = event("describe", "name", "result:Shape", options=options)
    body = block(step("d", "rare.describe", name="endless"), yields=[to("W", y=1)])
    checking = program(
        namespace("rare", schema("Shape", [endless]), described), workflow("W", "", "y", body)
    )
    worker = fleet.add_worker(
        "checking",
        *("-Q", "checked", "--concurrency=1"),
        FLOWENGINE_IMPORTS=rare.__name__,
        FLOWENGINE_MAX_SCHEMA_CHECKS=str(10**18),
    )
    run = fleet.engine.start(checking, "W", {})
    (pid,) = until(lambda: fleet.begun("endless"), "its begin")
    with pytest.raises(RunFailed, match="no activity for more than its timeout of 1 s"):
        run.result(timeout=20)
    until(lambda: not is_running(pid), "the end of the process that validated")
    worker.stop()
    fleet.workers.remove(worker)


def test_a_worker_that_shuts_down_does_not_release_a_try_that_must_not_run_twice(
    fleet: Fleet,
) -> None:
    run = fleet.start(graphs.held_once, name="dropped")
    (pid,) = until(lambda: fleet.begun("dropped"), "its begin")
    (worker,) = [worker for worker in fleet.workers if pid in worker.children()]
    worker.kill("SIGQUIT")
    worker.wait()
    with pytest.raises(RunFailed, match="must not run twice"):
        run.result(timeout=20)
    assert fleet.begun("dropped") == [pid]


def test_a_list_that_no_worker_consumes_is_an_alarm_until_one_does(fleet: Fleet) -> None:
    lazy = fleet.add_worker("lazy", "-Q", "other", FLOWENGINE_IMPORTS=rare.__name__)
    run = fleet.start(rare.measuring, metres=5)
    alarm = until(lambda: run.info().alarm, "an alarm")
    assert "lazy@" in alarm
    assert "consumes other" in alarm
    assert "add 'rare'" in alarm
    until(lambda: _asked_to_consume(fleet, "rare"), "its consent")
    assert run.result(timeout=20) == 5
    assert run.info().alarm is None
    lazy.stop()
    fleet.workers.remove(lazy)


def _asked_to_consume(fleet: Fleet, queue: str) -> object:
    try:
        return fleet.app.control.add_consumer(queue, reply=True, timeout=2)
    except redis.exceptions.ConnectionError:
        return None  # a connection that Redis closed while it lay idle in the pool


def test_a_worker_counts_the_tries_it_has_handled(fleet: Fleet) -> None:
    before = handled(fleet)
    wait_and_check(fleet, start_mixed(fleet, 2))

    def counted() -> tuple[int, ...]:
        now = handled(fleet)
        names = graphs.square.name, graphs.add_up.name
        return tuple(now.get(name, 0) - before.get(name, 0) for name in names)

    until(lambda: counted() == (2 * graphs.MANY, 2), "all counts")


def handled(fleet: Fleet) -> dict[str, int]:
    found: dict[str, int] = {}
    for server in fleet.engine.servers():
        for count in server.handled:
            found[count.handler] = found.get(count.handler, 0) + count.handled
    return found
