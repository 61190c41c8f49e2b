"""The evaluator: what should a run do next?

Theory of operation. A run is a tree of rows (`records.Step`): a step's body is made of
blocks, a block's children are the steps of its statements. Each row is a small state
machine (`states`). Two counters make evaluation incremental: `waiting`, how many steps
must end before this row can begin, and `remaining`, how many children have not ended.
The end of a step counts down its block and the rows that its edges name (`endings`), a
counter that reaches zero moves its row on (`steps`, `blocks`), and so on until nothing
moves (`fixed_point`). The cost of an answer follows what it changes, not the size of the
run.

It is pure. What happened goes in (`happenings`), `IterationChanges` come out. It reads
no clock, draws no lots and makes no ids: the time is an argument, ids follow from paths.
It sees only the rows it is given, and names those it lacks (`work.Missing`).
"""

from flowengine.evaluator.fixed_point import evaluate, lacking
from flowengine.evaluator.records import (
    EventDefinition,
    IterationChanges,
    PayloadRef,
    RunView,
    Step,
    TaskDefinition,
)
from flowengine.evaluator.states import EventState, RunState, StepState, TaskState
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
