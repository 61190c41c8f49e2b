"""In-flight markers of pool children that ended are removed."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, SHUTDOWN, MakeFleet
from tests.celery_nodes.fleet import until


def marked_pids(directory: Path) -> set[int]:
    found = (directory / "flowengine-spool" / "in-flight").glob("*-*")
    return {int(path.name.rpartition("-")[2]) for path in found}


def test_only_living_pool_children_have_a_marker(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    worker = fleet.add_worker("short", *QUICK_START, "-c", "2", "--max-tasks-per-child", "1")
    directory = fleet.directory / "short"
    first = set(worker.children())
    runs = [fleet.start(graphs.squared, n=n) for n in range(4)]
    assert [run.result(timeout=30) for run in runs] == [0, 1, 4, 9]
    until(lambda: first - set(worker.children()), "the end of a child that has worked")
    until(lambda: marked_pids(directory) <= set(worker.children()), "the end of old markers")
    worker.kill("SIGTERM")
    worker.wait(SHUTDOWN)
    assert marked_pids(directory) == set()
