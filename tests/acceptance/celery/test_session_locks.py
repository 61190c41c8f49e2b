"""A killed worker is found dead by its session lock, long before its heartbeat is old."""

from __future__ import annotations

import psutil

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.acceptance.chaos.server_deaths import locks_are_held
from tests.celery_nodes import until


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended; in a container nobody may reap it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_steps_of_a_killed_worker_run_again_though_its_heartbeat_is_not_old(
    make_fleet: MakeFleet,
) -> None:
    fleet = make_fleet(FLOWENGINE_SERVER_TIMEOUT="3600", FLOWENGINE_HEARTBEAT_INTERVAL="600")
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, "--concurrency=1", wait=False)
    run = fleet.start(graphs.held_then_added, name="orphan")
    (pid,) = until(lambda: fleet.begun("orphan"), "the start of the step")
    (victim,) = [worker for worker in fleet.workers if pid in worker.children()]
    for worker in fleet.workers:
        worker.wait_until_ready()
    until(lambda: locks_are_held(fleet), "locks of both workers")
    orphan = psutil.Process(pid)
    victim.kill()  # its main process alone
    until(lambda: len(fleet.begun("orphan")) > 1, "another try")
    again = fleet.begun("orphan")[1]
    until(lambda: has_ended(orphan), "the end of the child that had the first try")
    fleet.let_go("orphan")
    assert run.result(timeout=20) == again
    losses = [(task.state, task.losses) for task in fleet.engine.tasks(run.id)]
    assert losses == [("failed", 0), ("completed", 1), ("completed", 0)]
    assert "has ended; 1 step that it held will run again" in fleet.logs()
    assert "missed its heartbeat" not in fleet.logs()
