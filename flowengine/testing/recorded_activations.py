"""Activations that were run ahead, rebuilt from the rows of their calls.

The report of such an activation is part of the commit that ends a call, and is stored nowhere else.
Its calls are rows; the history of the commit names those that it created, cancelled or ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flowengine.evaluator import Step
from flowengine.evaluator.call_statements import call_from_json
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.triggers import ActivationEnded, Failed, RanAhead, Succeeded
from flowengine.program.function_calls import FunctionCall
from flowengine.program.standard import RESULT

Rows = Mapping[str, Step | None]  #: by key


def calls_of(steps: Iterable[Step], function: str) -> list[Step]:
    """Return the calls of a durable function, by the key of the function, in their order."""
    found = (step for step in steps if step.object_type == ObjectType.FUNCTION_CALL)
    return sorted((step for step in found if step.parent == function), key=lambda s: s.index)


def ran_ahead(
    recorded: Mapping[str, Any], before: Rows, function: Step, calls: Iterable[Step], ends: int
) -> RanAhead:
    """Return the input of a commit that has run a function ahead.

    `function` and its `calls` are rows as they were exported, `ends` the number of its calls that
    the same commit has ended.
    """
    states = {
        name: f"state.{word}" for word, names in recorded.get("steps", {}).items() for name in names
    }

    def state_of(step: Step) -> str | None:
        return states.get(step.path) or states.get(f"#{step.key}")

    known = before[function.key]
    assert known is not None
    made = [call for call in calls if before[call.key] is None and state_of(call) is not None]
    cancelled = [call.index for call in calls if state_of(call) == StepState.CANCELLED]
    state = state_of(function)
    ended: Succeeded | Failed | None = None
    if state == StepState.COMPLETE:
        ended = Succeeded({RESULT: function.returns.get(RESULT)}, is_from_code=True)
    elif state is not None and state not in (StepState.EVENT_TRANSMIT, StepState.SUSPENDED):
        ended = Failed(dict(function.error or {}), retry=False)
    seen = known.item_count + ends
    report = ActivationEnded(
        tuple(map(_call, made)), cancelled=tuple(cancelled), ended=ended, seen=seen
    )
    # A function that has a task after the commit was not run ahead: it had another end to hear.
    is_refused = state == StepState.EVENT_TRANSMIT
    return RanAhead(known.id, known.key, -1 if is_refused else known.activation + 1, report)


def _call(step: Step) -> FunctionCall:
    name = step.path.rpartition("#")[0].rpartition(".")[2]
    return call_from_json(
        {
            "number": step.index,
            "name": name,
            "statement": step.address,
            "arguments": dict(step.params),
            "digest": step.digest or "",
            "heard": step.heard,
        }
    )
