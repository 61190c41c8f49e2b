"""An exported run with durable functions is evaluated again to the same decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowengine.testing import replay
from tests.integration.functions import bodies
from tests.integration.functions.workers import IN_PLACE, WITH_TASKS, worked


@pytest.mark.parametrize("settings", [IN_PLACE, WITH_TASKS], ids=["in_place", "with_tasks"])
def test_an_export_is_evaluated_to_the_same_decisions(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    given: list[tuple[Any, Any]] = [
        *((bodies.chain, 5), (bodies.wide, 10), (bodies.caught, 3), (bodies.outer, 2)),
        *((bodies.races, 3), (bodies.patient, 6), (bodies.survey, [1, 2])),
        *[(bodies.caught, 3)] * 3,  # the worker learns that it fails quickly: in place then
    ]
    with worked("sqlite://", tmp_path, **settings) as worker:
        for flow, argument in given:
            bodies.made.clear()
            worker.run(flow, argument)
        infos = worker.engine.list()
        assert len(infos) == len(given) + 2  # the child runs of `outer`
        for info in infos:
            assert replay(worker.engine.export(info.id)).check().state == "COMPLETED"
