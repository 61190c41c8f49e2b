"""Choose the cases of a when block.

All conditions are evaluated together, when the steps that they name have completed. A case that
is not taken gets a skipped row, so that a page can show it.
"""

from __future__ import annotations

from flowengine.evaluator.failures import StepFailed, problem
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import RowScope
from flowengine.evaluator.states import ObjectType, Signal, StepState, next_state
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.expressions import EvaluationError, evaluate
from flowengine.program.plan import BlockPlan, ChoicePlan


def choose(work: WorkingSet, row: Step, plan: BlockPlan) -> Signal:
    """Create a row for each case; the taken ones begin."""
    choice = plan.choice
    assert choice is not None
    taken = _taken(work, row, choice)
    if not taken:
        if choice.is_optional:
            row.error = problem("Skipped", "no case of the catch is for this error", row.path)
            return Signal.SKIP
        message = "no case matches, and there is no default"
        raise StepFailed(problem("NoCaseMatches", message, row.path))
    container = row.path.removesuffix(plan.segment)
    for index, case in enumerate(choice.cases):
        path = container + case.segment
        created = work.create(RowKind.CASE, path, ObjectType.CASE, case.address, row, index)
        if index in taken:
            work.queue.append(created)
        else:
            created.state = next_state(ObjectType.CASE, path, created.state, Signal.SKIP)
    row.remaining = len(taken)
    return Signal.ADVANCE


def _taken(work: WorkingSet, row: Step, choice: ChoicePlan) -> set[int]:
    scope = RowScope(work, row, choice.sources)
    taken: set[int] = set()
    for index, condition in enumerate(choice.conditions):
        if condition is None:
            continue
        try:
            if evaluate(condition, scope):
                taken.add(index)
        except EvaluationError as error:
            message = f"condition of case {index}: {error}"
            raise StepFailed(problem("EvaluationError", message, row.path)) from None
        if taken and choice.is_first_only:
            return taken
    return taken or {i for i, condition in enumerate(choice.conditions) if condition is None}


def capture(work: WorkingSet, row: Step, plan: BlockPlan) -> Signal:
    """Take over the yields of the cases that ran, in program order."""
    assert plan.choice is not None
    container = row.path.removesuffix(plan.segment)
    keys = [row_key(RowKind.CASE, container + case.segment) for case in plan.choice.cases]
    work.want(keys)
    cases = [work.get(key) for key in keys]
    row.yields = [y for case in cases if case.state == StepState.COMPLETE for y in case.yields]
    return Signal.ADVANCE
