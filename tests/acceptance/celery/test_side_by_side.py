"""Workers of two versions consume one task list."""

from __future__ import annotations

import time
from statistics import median

from tests.acceptance.celery import graphs, rare
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
