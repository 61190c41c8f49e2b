"""Canvases that are started as runs survive the death of their workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import chain, chord, group
from celery.result import AsyncResult

from flowengine import durable
from flowengine.assembly import FlowEngine
from flowengine.authoring import set_launcher_source, set_task_list_source
from flowengine.evaluator.states import TaskState
from flowengine.settings import Settings
from flowengine.tasks.canvas_results import DurableResult
from tests.acceptance.celery import canvases
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import Fleet, until


@pytest.fixture(scope="module")
def fleet(make_fleet: MakeFleet) -> Iterator[Fleet]:
    """Two workers of the project, and its app in this process, which starts canvases."""
    fleet = make_fleet(imports="")
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, app=canvases.__name__, wait=False)
    fleet.add_beat(app=canvases.__name__)
    before, lists = set_launcher_source(None), set_task_list_source(None)
    environment = fleet.environment
    canvases.app.conf.broker_url = environment["FLOWENGINE_BROKER_URL"]
    canvases.app.conf.result_backend = environment["FLOWENGINE_RESULT_BACKEND"]
    plugin = FlowEngine(canvases.app, settings=Settings.from_environment(environment))
    yield fleet
    plugin.engine.close()
    set_launcher_source(before)
    set_task_list_source(lists)


def test_a_chord_whose_worker_is_killed_has_its_result_once(fleet: Fleet) -> None:
    fleet.heal()
    header = [canvases.held_square.s("killed", n) for n in range(6)]
    canvas = chord(header, canvases.add_up.s("killed")) | canvases.double.s()
    result = durable(canvas).apply_async(task_id="sum-of-squares")
    assert isinstance(result, AsyncResult)
    pids = until(lambda: fleet.begun("killed"), "the start of the header")
    victim = next(worker for worker in fleet.workers if {*pids} & {*worker.children()})
    victim.kill()
    assert not result.ready()
    until(lambda: {*fleet.begun("killed")} - {*pids}, "another try of a lost step")
    fleet.let_go("killed")
    assert result.get(timeout=60) == 2 * (0 + 1 + 4 + 9 + 16 + 25)
    summed = (fleet.traces / "summed-killed").read_text().splitlines()
    assert summed == ["[0, 1, 4, 9, 16, 25]"], "the body was called once, with all results"
    tasks = fleet.engine.tasks(result.run.id)
    assert [task.state for task in tasks].count(TaskState.COMPLETED) == len(header) + 2
    assert sum(task.losses for task in tasks) > 0, "steps were lost, and done again"
    # Old code in another process knows the id alone.
    assert DurableResult("sum-of-squares", app=canvases.app).get(timeout=1) == 110


def test_canvases_of_one_shape_on_workers_share_one_program(fleet: Fleet) -> None:
    fleet.heal()
    fleet.let_go("wide")
    results = [
        durable(
            chain(
                canvases.double.s(width),
                group(canvases.double.s() for _ in range(width)),
                canvases.add_up.s(f"wide{width}"),
            )
        ).delay()
        for width in (2, 30, 200)
    ]
    assert [result.get(timeout=60) for result in results] == [16, 3_600, 160_000]
    assert len({result.run.info().workflow for result in results}) == 1


def test_an_errback_on_a_worker_gets_the_error_and_old_code_raises_it(fleet: Fleet) -> None:
    fleet.heal()
    canvas = chain(canvases.double.s(2), canvases.refuse.s(), canvases.double.s())
    canvas = canvas.on_error(canvases.report.s("refused"))
    result = durable(canvas, name="shop.refusing").delay()
    with pytest.raises(ValueError, match="not 4"):
        result.get(timeout=60)
    assert (result.state, result.failed()) == ("FAILURE", True)
    assert 'raise ValueError(f"not {n}")' in result.traceback
    step = "refusing.attempt.refuse"
    told = f"{canvases.report.name} {step} ValueError('not 4') {step}: ValueError: not 4"
    assert (fleet.traces / "reported-refused").read_text() == told
