"""Labels of runs and steps on the pages."""

from __future__ import annotations

from flowengine.evaluator.states import StepState
from flowengine.web.styles import counted


def test_items_without_fetched_tasks_are_not_labelled_as_waiting_for_a_worker() -> None:
    counts = {
        StepState.EVENT_TRANSMIT: 3,
        StepState.BLOCKS_CONTINUE: 2,
        StepState.CREATED: 7,
        StepState.COMPLETE: 1_200,
    }
    said = counted(counts)
    assert said == "1,212 more items: 5 under way, 7 not begun, 1,200 complete"
