"""Async facets in the pool children of a Celery worker."""

from __future__ import annotations

import pytest

from flowengine.errors import RunFailed
from tests.acceptance.celery import coroutines
from tests.acceptance.celery.conftest import QUICK_START, SHUTDOWN, MakeFleet
from tests.celery_nodes import Fleet, until

MANY = 60


@pytest.fixture(scope="module")
def one_child(make_fleet: MakeFleet) -> Fleet:
    fleet = make_fleet(
        coroutines.__name__,
        FLOWENGINE_ASYNC_CONCURRENCY=str(MANY),
        FLOWENGINE_LOG_WAKEUPS="off",
    )
    fleet.add_worker("async", "--concurrency=1", *QUICK_START)
    return fleet


def test_one_pool_child_runs_many_coroutines_at_once(one_child: Fleet) -> None:
    run = one_child.start(coroutines.gathering, name="many", numbers=list(range(MANY)), number=MANY)
    assert run.result(timeout=30) == one_child.workers[0].children() * MANY
    step = f"[run {run.id[:8]} gathering.foreach[7].gather try 1]"
    until(lambda: f"number 7 {step}" in one_child.logs(), "the log record of a step")
    assert "Task flowengine." not in one_child.logs(), "wake-ups are not logged"


def test_a_timeout_does_not_kill_the_child_of_other_coroutines(one_child: Fleet) -> None:
    other = one_child.start(coroutines.gathering, name="other", numbers=[1], number=2)
    (child,) = until(lambda: one_child.begun("other"), "the first try")
    late = one_child.start(coroutines.hanging, n=1)
    with pytest.raises(RunFailed, match="Timeout"):
        late.result(timeout=30)
    one_child.let_go("other")
    assert other.result(timeout=30) == [child]
    assert one_child.workers[0].children() == [child]


def test_a_child_whose_event_loop_is_blocked_is_named_and_killed(one_child: Fleet) -> None:
    (child,) = one_child.workers[0].children()
    run = one_child.start(coroutines.holding, n=1)
    with pytest.raises(RunFailed, match="Timeout"):
        run.result(timeout=30)
    until(lambda: child not in one_child.workers[0].children(), "the end of the child")
    assert "coroutines.hold_loop (holding.hold_loop) blocks the event loop" in one_child.logs()


def test_a_worker_that_shuts_down_finishes_its_coroutines(one_child: Fleet) -> None:
    one_child.heal()
    run = one_child.start(coroutines.gathering, name="last", numbers=[1, 2, 3], number=4)
    worker, place = one_child.workers[0], f"[run {run.id[:8]} "
    for n in (1, 2, 3):  # a try that has not begun is left to other workers
        until(lambda n=n: f"number {n} {place}" in worker.logs(), f"try {n}")  # type: ignore[misc]
    worker.terminate()
    until(lambda: "Warm shutdown" in worker.logs(), "the beginning of the shutdown")
    one_child.let_go("last")
    assert worker.wait(SHUTDOWN) == 0
    assert run.state == "COMPLETED"
    assert {task.losses for task in one_child.engine.tasks(run.id)} == {0}
