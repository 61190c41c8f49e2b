"""What happens to a step in each of its states.

A handler does the work of one state and answers with the signal that moves the step on,
or with nothing: then the step rests where it is until something happens to it.
"""

from __future__ import annotations

from flowengine.evaluator.answers import answer
from flowengine.evaluator.failures import StepFailed, problem
from flowengine.evaluator.joins import join_of
from flowengine.evaluator.merging import Merge
from flowengine.evaluator.records import Step, TaskDefinition, derived_id, event_of, row_key
from flowengine.evaluator.retries import TryAgain
from flowengine.evaluator.scope import RowScope, source_key
from flowengine.evaluator.states import ObjectType, Signal
from flowengine.evaluator.work import Work
from flowengine.program.expressions import EvaluationError, evaluate
from flowengine.program.nodes import FacetKind
from flowengine.program.plan import BlockPlan, BodyPlan, RowKind


def initialize(work: Work, step: Step) -> Signal:
    """Evaluate the arguments: they are the step's parameters."""
    if step.object_type == ObjectType.WORKFLOW:
        return Signal.ADVANCE  # the inputs are its parameters already
    plan = work.statement(step)
    scope = RowScope(work, work.parent(step), plan.sources)
    try:
        step.params = scope.values(plan.arguments)
        if plan.condition is not None and not evaluate(plan.condition, scope):
            raise StepFailed(problem("AssertionFailed", "sys.assert does not hold", step.path))
    except EvaluationError as error:
        raise StepFailed(problem("EvaluationError", str(error), step.path)) from None
    return Signal.ADVANCE


def transmit(work: Work, step: Step) -> Signal | None:
    """Ask the outside for what an event facet promises, and rest until it answers."""
    facet = work.facet(step)
    if facet is None or facet.kind is not FacetKind.EVENT:
        answer(work, step, facet.name if facet else "")
        return Signal.ADVANCE
    work.changes.add_created_event(event_of(step))
    work.run.open_steps += 1
    create_task(work, step, TryAgain(try_number=1, losses=0, due=work.now))
    return None


def create_task(work: Work, step: Step, again: TryAgain) -> None:
    """Open one try of a step's event."""
    facet = work.facet(step)
    assert facet is not None
    timeout = facet.options.timeout
    work.changes.add_created_task(
        TaskDefinition(
            uuid=derived_id(step.id, again.try_number, again.losses),
            name=facet.name,
            runner_id="",
            workflow_id=work.run.id,
            flow_id=work.run.program_hash,
            step_id=step.id,
            created=work.now,
            updated=work.now,
            task_list_name=facet.options.task_list,
            data=step.params,
            step_key=step.key,
            step_path=step.path,
            try_number=again.try_number,
            losses=again.losses,
            due=again.due,
            priority=work.run.priority,
            timeout_ms=round(timeout * 1000) if timeout is not None else None,
            runs_once=facet.options.on_loss == "fail",
            # A second try comes alone: it is evaluated when it is reported.
            join=join_of(work, step) if again.try_number + again.losses == 1 else "",
        )
    )


def begin_blocks(work: Work, step: Step) -> Signal:
    """Create the blocks of the body; they run side by side."""
    body = _body(work, step)
    for plan in body.blocks if body else ():
        block = _create_block(work, step, plan)
        if block.waiting == 0:
            work.queue.append(block)
    step.remaining = len(body.blocks) if body else 0
    return Signal.ADVANCE


def _create_block(work: Work, step: Step, plan: BlockPlan) -> Step:
    kind, object_type = (
        (RowKind.FAN, ObjectType.FAN) if plan.foreach else (RowKind.BLOCK, ObjectType.BLOCK)
    )
    path = step.path + plan.segment
    # Sources of a foreach are read from its container. Look before the row is created: a
    # missing row stops the evaluation, and it starts again from nothing.
    waiting, failed = 0, None
    if plan.foreach:
        needs = [source_key(work, step, source) for source in plan.foreach.needs]
        keys = [*needs, *(source_key(work, step, source) for source in plan.foreach.awaits)]
        work.want(keys)
        waiting = sum(1 for key in keys if not has_ended(work, key))
        rows = [work.find(key) for key in needs]
        failed = next((row for row in rows if row is not None and row.has_failed), None)
    block = work.create(kind, path, object_type, plan.address, step, plan.index)
    block.waiting = waiting
    if failed is not None:
        # At once: it need not wait for the others, and must not be counted down by them.
        work.skip(block, failed)
    return block


def has_ended(work: Work, key: str) -> bool:
    row = work.find(key)
    return row is not None and row.is_final


def await_blocks(work: Work, step: Step) -> Signal | None:
    """Go on when the last block has ended; fail as the first failed block did."""
    return children_ended(step)


def children_ended(row: Step) -> Signal | None:
    """Say how a row goes on whose children may have ended."""
    if row.remaining:
        return None
    if row.failure is None:
        return Signal.ADVANCE
    row.error = row.failure["error"]
    return Signal.FAIL if row.failure["rank"][0] == 0 else Signal.SKIP


def capture(work: Work, step: Step) -> Signal:
    """Lay the yields of the body over the results, in program order."""
    body = _body(work, step)
    if body is None:
        return Signal.ADVANCE
    _want_yields(work, step, body)
    merge = Merge(step.returns, work.read)
    carried: list[tuple[int, dict[str, object]]] = []
    for plan in body.blocks:
        path = step.path + plan.segment
        if plan.foreach is None:
            sources = [work.get(row_key(RowKind.BLOCK, path))]
        else:
            count = work.get(row_key(RowKind.FAN, path)).item_count
            sources = [work.get(row_key(RowKind.ITEM, f"{path}[{i}]")) for i in range(count)]
            for levels, name in [] if count else plan.foreach.empty_lists:
                if levels == 0:
                    merge.lay_empty_list(name)
                else:
                    carried.append((levels - 1, {name: []}))
        for levels, attributes in (entry for source in sources for entry in source.yields):
            if levels == 0:
                merge.lay(attributes)
            else:
                carried.append((levels - 1, attributes))
    step.returns, step.yields = merge.values, carried
    return Signal.ADVANCE


def _want_yields(work: Work, step: Step, body: BodyPlan) -> None:
    """Ask for all rows that hold yields, so that a wide foreach is read in one trip."""
    fans = [step.path + plan.segment for plan in body.blocks if plan.foreach]
    keys = [
        row_key(RowKind.BLOCK, step.path + plan.segment)
        for plan in body.blocks
        if plan.foreach is None
    ]
    work.want([*keys, *(row_key(RowKind.FAN, path) for path in fans)])
    for path in fans:
        count = work.get(row_key(RowKind.FAN, path)).item_count
        work.want(row_key(RowKind.ITEM, f"{path}[{i}]") for i in range(count))


def _body(work: Work, step: Step) -> BodyPlan | None:
    if step.object_type == ObjectType.WORKFLOW:
        return work.plan.facets[step.address].body
    return work.statement(step).body
