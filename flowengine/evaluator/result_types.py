"""The results that a body has computed are of the types that its facet declares.

The result of a try is validated when it is reported, by the annotation of its function. A workflow,
or a facet with a body, passes results on: here they are compared with the types and schemas of the
program. A result that comes from one step which declares the same was checked with that step, and
of a durable function by its code.

Null fits every type of AFL, and no annotation of a Python function but one that allows None. What
an annotation accepts when it reads a value is accepted: a map may have the names of fields or their
aliases, and leave out what is computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowengine.evaluator.failures import StepFailed
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import source_key
from flowengine.evaluator.states import StepState
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.nodes import FacetKind, Field, StepRef
from flowengine.program.plan import BlockPlan, FacetPlan, StatementPlan
from flowengine.program.standard import RESULT
from flowengine.program.types import field_misfit, null_misfit, type_misfit, untyped
from flowengine.program.validator import Checks

_KINDS = {FacetKind.WORKFLOW: "workflow", FacetKind.FACET: "facet", FacetKind.EVENT: "event facet"}


def captured_blocks(work: WorkingSet, step: Step) -> list[BlockPlan]:
    """Return the blocks whose yields are the results of a step: its body, or what has completed
    of it, and the catch that has run."""
    plan = work.step_plan(step)
    if not step.next_index:
        return list(plan.body)
    complete = [block for block in plan.body if _is_complete(work, step, block)]
    return [*complete, plan.catches[step.next_index - 1]]


def _is_complete(work: WorkingSet, step: Step, plan: BlockPlan) -> bool:
    block = work.find(row_key(plan.kind, step.path + plan.segment))
    return block is not None and block.state == StepState.COMPLETE


def check_results(work: WorkingSet, step: Step, blocks: Sequence[BlockPlan]) -> None:
    """Fail a step whose results are not of the types that its facet declares."""
    facet = work.facet(step)
    if facet is None:
        return
    if [field.name for field in facet.returns] == [RESULT]:
        _check_annotated(work, step, facet, facet.returns[0], blocks)
        return
    typed = [f for f in facet.returns if not untyped(f) and f.name in step.returns]
    if not typed:
        return
    checks = Checks(work.limits.max_schema_checks)
    found = [
        (f.name, type_misfit(f, work.read(step.returns[f.name]), facet.schemas, checks))
        for f in typed
    ]
    work.count_checks(checks)
    if problems := [f"{name!r}: {why}" for name, why in found if why]:
        message = f"the yields of {facet.name} do not fit its returns: {'; '.join(problems)}"
        raise StepFailed("TypeMismatch", message, step.path)


def _check_annotated(
    work: WorkingSet, step: Step, facet: FacetPlan, field: Field, blocks: Sequence[BlockPlan]
) -> None:
    """Check the only result of a Python function by the annotation that the program has stored."""
    if RESULT not in step.returns or (untyped(field) and field.schema is None):
        return
    # The result of a step that declares the same was checked with that step: by its code, whose
    # annotation may have changed since the program was traced. So a large one need not be read.
    source = _statement(blocks)
    if source is not None and (source.function is not None or _declares(source, field)):
        return
    checks = Checks(work.limits.max_schema_checks, is_lenient=True)
    value = work.read(step.returns[RESULT])
    why = null_misfit(field, value, checks) or field_misfit(field, value, facet.schemas, checks)
    work.count_checks(checks)
    if why:
        path = _origin(work, step, blocks)
        given = f", whose result is that of {path}" if path else ""
        message = f"{_KINDS[facet.kind]} {facet.name!r}{given}: {RESULT!r}: {why}"
        raise StepFailed("DoesNotFit", message, step.path)


def _reference(blocks: Sequence[BlockPlan]) -> tuple[BlockPlan, str] | None:
    """Return the block that gives the result, and the name of the step whose result that is."""
    for block in reversed(blocks):
        for each in reversed(block.yields):
            expression = dict(each.attributes).get(RESULT) if each.levels == 0 else None
            if isinstance(expression, StepRef) and expression.path[1:] == (RESULT,):
                return block, expression.path[0]
            if expression is not None:
                return None
    return None


def _statement(blocks: Sequence[BlockPlan]) -> StatementPlan | None:
    """Return the call in the body itself whose result is the result of the body."""
    found = _reference(blocks)
    return None if found is None else found[0].by_name.get(found[1])


def _declares(source: StatementPlan, field: Field) -> bool:
    has_body = bool(source.inline_body or source.own_catch)
    return not has_body and source.facet is not None and source.facet.returns == (field,)


def _origin(work: WorkingSet, step: Step, blocks: Sequence[BlockPlan]) -> str:
    """Return the path of the step whose result is the result of this one; empty: of none."""
    found = _reference(blocks)
    if found is None or found[0].foreach is not None:
        return ""
    block, name = found
    row = work.get(row_key(block.kind, step.path + block.segment))
    origin = work.get(source_key(work, row, block.yield_sources.steps[name]))
    plan = work.step_plan(origin)
    if isinstance(plan, StatementPlan) and plan.inline_body:
        return _origin(work, origin, captured_blocks(work, origin)) or origin.path
    return origin.path
