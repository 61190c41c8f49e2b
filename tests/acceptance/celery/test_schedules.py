"""Schedules on Celery: workers publish them, and their runs are executed, whoever ticks."""

from __future__ import annotations

import pytest

from flowengine.evaluator.states import RunState
from flowengine.scheduling import shown_time
from tests.acceptance.celery.conftest import QUICK_START, SOON, MakeFleet
from tests.celery_nodes import Fleet, until

CLOCKWORK = "tests.acceptance.celery.clockwork"  # named, not imported
NAME = "clockwork.seconds"


@pytest.fixture(scope="module")
def module_fleet(make_fleet: MakeFleet) -> Fleet:
    """Two workers and a beat."""
    fleet = make_fleet(imports=CLOCKWORK)
    for name in ("first", "second"):
        fleet.add_worker(name, *QUICK_START, wait=False)
    fleet.add_beat()
    return fleet


def ended_ticks(fleet: Fleet) -> int:
    found = fleet.engine.list(state=RunState.COMPLETED, limit=1000)
    return len([run for run in found if run.workflow == NAME])


def test_a_worker_publishes_its_schedule_and_a_killed_one_loses_no_tick(fleet: Fleet) -> None:
    until(lambda: ended_ticks(fleet) >= 2, "two runs have completed", SOON)
    fleet.workers[0].kill()
    before = ended_ticks(fleet)
    until(lambda: ended_ticks(fleet) >= before + 3, "three more have", SOON)
    fleet.engine.schedules.pause(NAME, actor="eva")
    ticks = fleet.engine.schedules.ticks(NAME, most=1000)
    until(lambda: ended_ticks(fleet) == len(ticks), "all have", SOON)
    moments = [each.nominal for each in ticks]
    assert moments == list(range(moments[0], moments[-1] - 1, -1000)), "each second once"
    assert len({each.run_id for each in ticks}) == len(ticks)
    by_name = fleet.engine.start(NAME, {"at": "noon"})  # this process has not imported it
    assert by_name.result(timeout=30) == "noon"
    for each in ticks:
        run = fleet.engine.get(each.run_id or "")
        assert run.key == f"tick:{NAME}@{shown_time(each.nominal)}"
        assert run.outputs == {"result": shown_time(each.nominal)}
