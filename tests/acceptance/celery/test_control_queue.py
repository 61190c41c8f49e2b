"""Workers that were started with -Q serve the control queue if no other worker does."""

from __future__ import annotations

from typing import Any

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import until


def test_a_start_by_message_reaches_workers_that_name_other_queues(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(FLOWENGINE_SERVER_TIMEOUT="1.5", FLOWENGINE_HEARTBEAT_INTERVAL="0.5")
    fleet.add_worker("picky", *QUICK_START, "-Q", "wide", "-c", "1", wait=False)
    start = (graphs.squared.name, {"n": 3})
    fleet.app.send_task("flowengine.execute", start, task_id="start-1", queue="flowengine")

    def ended() -> list[Any]:
        return [info for info in fleet.engine.list() if info.key == "start-1" and info.is_final]

    (run,) = until(ended, "the run of the message")
    assert run.outputs == {"result": 9}
    assert "no living worker has consumed the control queue 'flowengine'" in fleet.logs()
