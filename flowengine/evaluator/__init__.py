"""The evaluator decides what a run does next.

A run is a tree of rows (`records.Step`): a step's body is made of blocks, a block's children
are the steps of its statements. Each row is a small state machine (`states`). Two counters make
evaluation incremental: `waiting`, the steps that must end before this row can begin, and
`remaining`, the children that have not ended. The end of a step counts down its block and the
rows at its edges (`propagation`), a counter that reaches zero advances its row (`steps`,
`blocks`), and so on until nothing changes (`fixed_point`). The cost of a report follows the
change, not the size of the run.

It is pure: inputs go in (`triggers`), `IterationChanges` come out. It reads no clock and no
random numbers: the time is an argument, ids follow from paths. It sees only the rows of its
snapshot, and names those that are missing (`working_set.Missing`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flowengine.evaluator.records import (
    EventDefinition,
    IterationChanges,
    PayloadRef,
    RunView,
    Step,
    TaskDefinition,
)
from flowengine.evaluator.states import EventState, RunState, StepState, TaskState

if TYPE_CHECKING:
    from flowengine.evaluator.fixed_point import evaluate, lacking
    from flowengine.evaluator.working_set import Missing, Snapshot

__all__ = [
    "EventDefinition",
    "EventState",
    "IterationChanges",
    "Missing",
    "PayloadRef",
    "RunState",
    "RunView",
    "Snapshot",
    "Step",
    "StepState",
    "TaskDefinition",
    "TaskState",
    "evaluate",
    "lacking",
]

#: Imported with their first use: most processes that read rows evaluate nothing.
_HOMES = {
    **dict.fromkeys(("evaluate", "lacking"), "fixed_point"),
    **dict.fromkeys(("Missing", "Snapshot"), "working_set"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
