"""Workers of two versions consume one task list."""

from __future__ import annotations

import time
from statistics import median

import pytest

from flowengine.agents import JoinTask, agents_of
from flowengine.agents.enqueue import NewTurn
from tests.acceptance.celery import graphs, rare
from tests.acceptance.celery.agent_load import rows
from tests.acceptance.celery.conftest import QUICK_START, SOON, MakeFleet


def test_a_wakeup_is_passed_on_to_a_worker_that_has_the_code(make_fleet: MakeFleet) -> None:
    """Recovery sends a wake-up once a minute here, so it helps the first of the runs at most."""
    fleet = make_fleet(FLOWENGINE_WAKEUP_REPEAT="60")
    one_child = "--concurrency=1"
    for name in ("old-1", "old-2", "old-3"):
        fleet.add_worker(name, *QUICK_START, one_child, wait=False)
    both = f"{graphs.__name__},{rare.__name__}"
    fleet.add_worker("new", *QUICK_START, one_child, FLOWENGINE_IMPORTS=both)
    for worker in fleet.workers:
        worker.wait_until_ready()
    assert fleet.start(rare.weighing, grams=0).result(timeout=60) == 1
    seconds = []
    for grams in range(10):
        began = time.monotonic()
        assert fleet.start(rare.weighing, grams=grams).result(timeout=20) == grams + 1
        seconds.append(time.monotonic() - began)
        assert fleet.start(graphs.squared, n=grams).result(timeout=20) == grams**2
    print([round(each, 2) for each in seconds])
    assert median(seconds) < SOON


@pytest.mark.chaos  # under load it may wait for recovery again and again
def test_a_worker_without_the_code_of_an_agent_leaves_its_work_to_one_that_has_it(
    make_fleet: MakeFleet,
) -> None:
    """The tool of the agent is code of both: whichever runs it lets the turn go on.

    Mostly it is the new worker, which continues with the tools of its own model calls.
    """
    fleet = make_fleet()
    old = fleet.add_worker("old", *QUICK_START)
    fleet.add_beat()
    agents = agents_of(fleet.engine)
    new_turn = NewTurn("", "ada", rare.clerk.profile, "one")
    turns = [agents.send(new_turn)]
    asked = fleet.start(rare.asking, task="two")
    joined = fleet.start(
        rare.clerks, tasks=[JoinTask(instruction="three", target_ref="clerk").model_dump()]
    )
    assert fleet.start(graphs.squared, n=3).result(timeout=20) == 9  # it works on its own code
    time.sleep(2)  # several passes of recovery
    claims = "SELECT name, lease FROM flowengine_task WHERE name LIKE 'rare.%' ORDER BY name"
    waiting = [("rare.clerk", 0), ("rare.clerk__model", 0), ("rare.clerks__open", 0)]
    assert [tuple(row) for row in rows(fleet, claims)] == waiting
    both = f"{graphs.__name__},{rare.__name__}"
    new = fleet.add_worker("new", *QUICK_START, FLOWENGINE_IMPORTS=both)
    turns += [agents.send(NewTurn("", f"eva {n}", rare.clerk.profile, "go")) for n in range(10)]
    assert [turn.result(timeout=60) for turn in turns] == ["3"] * 11
    assert asked.result(timeout=60) == "3"
    assert joined.result(timeout=60)["status"] == "success"
    asking = set(fleet.begun("clerk"))
    assert asking <= set(new.children())
    assert asking.isdisjoint(old.children())
