"""Labels of runs and steps on the pages."""

from __future__ import annotations

from flowengine.engine.run_tree import HiddenItems, StepLine
from flowengine.evaluator.states import StepState
from flowengine.web import styles
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


def test_a_page_says_for_which_calls_a_durable_function_waits() -> None:
    line = StepLine(
        1, "research", "research.research", "shop.research@2", StepState.SUSPENDED, None, 0, 0,
        tries=3, losses=1, task_state=None, task_list=None, awaited=("ask#3", "sleep#4"),
    )  # fmt: skip
    assert styles.step_label(line, 0) == ("◔", "flow-blue", "waits for ask#3 and 1 more call")
    assert styles.try_label(line) == "3 activations, 1 lost"
    hidden = HiddenItems(2, {StepState.COMPLETE: 900}, kind="calls")
    assert styles.hidden_items_label(hidden) == "900 more calls: 900 complete"
