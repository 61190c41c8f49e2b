"""Scripts: events whose result is a map that is merged whole."""

from __future__ import annotations

from flowengine.evaluator.failures import StepFailed, problem
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType, Signal
from flowengine.evaluator.steps import children_ended
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.nodes import Json


def begin(work: WorkingSet, step: Step) -> Signal:
    """Create the step of the script that runs first."""
    plan = work.step_plan(step).pre_script
    assert plan is not None
    script = work.create(RowKind.STEP, _path(step), ObjectType.SCRIPT, plan.address, step, -1000)
    script.facet_name = plan.target
    work.queue.append(script)
    step.remaining = 1
    return Signal.ADVANCE


def capture(work: WorkingSet, step: Step) -> Signal | None:
    """Merge the result of the script into the parameters."""
    signal = children_ended(step)
    if signal is not Signal.ADVANCE:
        return signal
    step.params = {**step.params, **result_of(work, row_key(RowKind.STEP, _path(step)))}
    return Signal.MIX if work.step_plan(step).mixins else Signal.ADVANCE


def result_of(work: WorkingSet, key: str) -> dict[str, Json]:
    script = work.get(key)
    result = work.read(script.returns.get("result"))
    if not isinstance(result, dict):
        raise StepFailed(problem("ScriptFailed", "the script gave no map", script.path))
    return result


def _path(step: Step) -> str:
    return f"{step.path}[script]"
