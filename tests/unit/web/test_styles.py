"""Labels of runs and steps on the pages."""

from __future__ import annotations

from flowengine.engine.run_tree import HiddenItems
from flowengine.evaluator.states import StepState
from flowengine.web.styles import hidden_items_label


def test_items_without_fetched_tasks_are_not_labelled_as_waiting_for_a_worker() -> None:
    counts = {
        StepState.EVENT_TRANSMIT: 3,
        StepState.BLOCKS_CONTINUE: 2,
        StepState.CREATED: 7,
        StepState.COMPLETE: 1_200,
    }
    label = hidden_items_label(HiddenItems(1, counts))
    assert label == "1,212 more items: 5 in progress, 7 not started, 1,200 complete"
