"""An attack on a worker through its broker, and everything that must hold after it."""

from __future__ import annotations

import time

import psutil

from flowengine.evaluator import TaskState
from tests.acceptance.celery import guarded
from tests.acceptance.celery.conftest import QUICK_START
from tests.acceptance.celery.forger import CONTROL_QUEUE, QUEUES, Forger, Queues
from tests.celery_nodes import Fleet, until

#: The fleet to attack: it may run scripts, and has the code of all steps.
ATTACKED = {
    "imports": guarded.__name__,
    "FLOWENGINE_SCRIPTS": "on",
    "FLOWENGINE_CONTROL_QUEUE": CONTROL_QUEUE,
}
#: Its worker consumes three queues, and not that of the task list `elsewhere`.
ARGUMENTS = (*QUICK_START, "-Q", ",".join(QUEUES))


def attack(fleet: Fleet, queues: Queues, seed: int, count: int) -> None:
    engine = fleet.engine
    (worker,) = fleet.workers
    pid = worker.pid
    later = fleet.start(guarded.waits, n=1)
    until(
        lambda: any(
            task.state == TaskState.PENDING and task.lease == 0 and task.try_number == 2
            for task in engine.tasks(later.id)
        ),
        "the first try has failed",
    )
    elsewhere = fleet.start(guarded.is_elsewhere, n=1)
    waiting = [
        task
        for run in (later, elsewhere)
        for task in engine.tasks(run.id)
        if task.state == TaskState.PENDING
    ]
    assert [task.task_list_name for task in waiting] == ["guarded", "elsewhere"]
    tries = (fleet.traces / "ran-later").read_text()
    forger = Forger(queues, fleet.traces, seed, [task.uuid for task in waiting])
    memory = psutil.Process(pid).memory_info().rss
    began = time.monotonic()
    forger.send(count)
    honest = fleet.start(guarded.is_here, n=1)
    until(queues.are_empty, "all messages are consumed", seconds=60 + count / 20)
    assert honest.result(timeout=30) == 3
    seconds = time.monotonic() - began
    grown = (psutil.Process(pid).memory_info().rss - memory) / 2**20
    print(
        f"\nseed {seed}: {count} forged messages in {seconds:.1f} s, {dict(forger.sent)}; "
        f"the worker grew by {grown:.1f} MB"
    )
    assert worker.pid == pid
    assert psutil.pid_exists(pid), "the worker has survived"
    assert not (fleet.traces / "ran-script").exists(), "no script has run"
    assert not (fleet.traces / "ran-elsewhere").exists(), "it is for the workers of another list"
    assert (fleet.traces / "ran-later").read_text() == tries, "it is not due"
    assert [task.state for task in engine.tasks(elsewhere.id)] == [TaskState.PENDING]
    assert fleet.count_logged("rejected a malformed message") > 5  # one line for each kind
    assert grown < 100
