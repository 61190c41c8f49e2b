"""Actions that run steps again, or end them by hand.

Each opens a new generation of the rows that `generations` chooses. The renewed root then goes on,
creates the rows that are missing below it and takes over those that are kept: so counters, yields
and errors of a retried run are computed by the same code as those of any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowengine.evaluator import cancellation, catch, deadlines, generations
from flowengine.evaluator.call_statements import plan_of_call
from flowengine.evaluator.failures import SKIPPED_BY_HAND, Refused, limited, problem
from flowengine.evaluator.generations import Generation, foreign_rows
from flowengine.evaluator.outline import Outline, OutlineRow
from flowengine.evaluator.records import Step, id_within, row_key
from flowengine.evaluator.states import ObjectType, RunState, Signal, StepState, next_state
from flowengine.evaluator.successors import event_results, fails_in_always, renewed, successor
from flowengine.evaluator.triggers import Action
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.function_options import function_of
from flowengine.program.suggestions import Suggestions

_MAX_LISTED = 10  # paths in a refusal


def retry(work: WorkingSet, action: Action) -> None:
    """Run the failed steps again, or one step and every step that depends on it.

    In a fork, a new run with the rows of another, the steps that had not ended run too.
    """
    outline, chosen = choose(work, action)
    inputs = action.options.get("inputs")
    assert inputs is None or isinstance(inputs, dict)
    open_generation(work, outline, chosen, inputs=inputs)
    if "fork" not in action.options:  # a fork has no child runs yet
        cancellation.cancel_superseded_children(work, action)


def choose(work: WorkingSet, action: Action) -> tuple[Outline, Generation]:
    """Return the rows of the run and those that a retry supersedes, or refuse it."""
    path, is_fork = action.options.get("from_step"), "fork" in action.options
    has_inputs = "inputs" in action.options
    if path is None and not is_fork:
        _check_state(work.run.state)
    outline = work.outline()
    if (root := outline.rows.get(work.root_key)) is None:
        raise Refused("the run was cancelled before it began: start a new one")
    first: list[OutlineRow] = generations.unfinished(outline) if is_fork else []
    if path is not None:
        first.append(_begun(named_row(outline, str(path))))
        if has_inputs:
            first += [row for row in outline.children(root.key) if not row.is_block]
    elif has_inputs:
        first = [root]
    elif is_fork and work.run.state == RunState.COMPLETED:
        raise Refused(
            "the run has completed: name the step from which the fork runs (from_step), or give "
            "other inputs"
        )
    if first:
        chosen = generations.from_steps(work.plan, outline, first)
    else:
        chosen = _failed(work, outline)
    if "program" in action.options:
        _check_program(work, outline, chosen)
    return outline, chosen


def _check_state(run_state: str) -> None:
    if run_state == RunState.COMPLETED:
        raise Refused(
            "the run has completed, so no step is to be retried; with from_step a step and all "
            "that depends on it run again"
        )
    if run_state not in RunState.FINAL:
        raise Refused(
            "the run has not ended: retry it then, or retry from a step (from_step), which is "
            "possible at once"
        )


def _begun(row: OutlineRow) -> OutlineRow:
    if row.state == StepState.CREATED:
        raise Refused(f"{row.path} has not begun")
    return row


def _failed(work: WorkingSet, outline: Outline) -> Generation:
    def in_always(row: OutlineRow) -> bool:
        return fails_in_always(work.get(row.key))

    def error_path(row: OutlineRow) -> str:
        return str((work.get(row.key).error or {}).get("path", ""))

    root = outline.rows[work.root_key]
    return generations.failed_rows(work.plan, outline, root, in_always, error_path)


def _check_program(work: WorkingSet, outline: Outline, chosen: Generation) -> None:
    """Refuse to move a run to a program without the steps that the run keeps."""
    changed = foreign_rows(work.plan, outline, chosen.rerun)
    if not changed:
        return
    shown = ", ".join(changed[:_MAX_LISTED])
    more = f" and {len(changed) - _MAX_LISTED} more" if len(changed) > _MAX_LISTED else ""
    raise Refused(
        f"the new program does not have these steps as the run has them: {shown}{more}; retry from "
        "a step before them, or start a new run"
    )


def complete(work: WorkingSet, action: Action) -> None:
    """Give a step its result: of its event, or of all of it if it is no event."""
    result = action.options["result"]
    assert isinstance(result, dict)
    outline = work.outline()
    row = _handled(outline, action)
    step = work.get(row.key)
    if step.state == StepState.EVENT_TRANSMIT:
        step.returns = result
        work.changes.answered_steps.append(step.id)
        _leave_event(work, step, action, Signal.CONTINUE)
        work.queue.append(step)
        return
    ended = successor(step)
    ended.returns, ended.params = result, step.params
    if generations.is_event(work.plan, row):
        ended.state = StepState.BLOCKS_BEGIN  # the body of an event facet runs now
    else:
        has_always = bool(work.step_plan(step).always)
        ended.state = StepState.ALWAYS_BEGIN if has_always else StepState.CAPTURE_END
    _replace(work, outline, row, ended)


def skip(work: WorkingSet, action: Action) -> None:
    """End a step without a result: the steps that need it are skipped, the run goes on."""
    outline = work.outline()
    row = _handled(outline, action)
    step = work.get(row.key)
    by = f"skipped by {action.actor or 'hand'}"
    message = f"{by}: {action.reason}" if action.reason else by
    error = limited(problem(SKIPPED_BY_HAND, message, step.path), work.limits)
    if step.state == StepState.EVENT_TRANSMIT:
        step.error = error
        _leave_event(work, step, action, catch.redirect(work, step, Signal.SKIP))
        (work.skipped if step.is_final else work.queue).append(step)
        return
    ended = successor(step)
    ended.error, ended.params, ended.state = error, step.params, StepState.SKIPPED
    if work.step_plan(step).always:
        ended.error, ended.state = {**error, "skipped": True}, StepState.ALWAYS_BEGIN
    _replace(work, outline, row, ended)


def _handled(outline: Outline, action: Action) -> OutlineRow:
    """Return the step that an action ends by hand, or refuse it."""
    row = named_row(outline, str(action.options["step"]))
    if row.object_type not in ObjectType.STEPS:
        raise Refused(f"{row.path} is no step: name a step in it")
    if row.state == StepState.SKIPPED:
        raise Refused(
            f"{row.path} was skipped because another step failed: {action.kind} that one, or "
            "retry it"
        )
    if row.state == StepState.COMPLETE:
        raise Refused(f"{row.path} has completed; retry(from_step=...) runs it again")
    if row.is_function_call and row.state == StepState.ERROR:
        raise Refused(
            f"{row.path} has failed, and its function knows it; retry(from_step=...) makes the "
            "call again"
        )
    if row.state not in (StepState.ERROR, StepState.EVENT_TRANSMIT) or any(
        child.is_function_call and not child.is_final for child in outline.children(row.key)
    ):
        raise Refused(f"{row.path} is in progress: {action.kind} the steps inside it")
    return row


def _leave_event(work: WorkingSet, step: Step, action: Action, signal: Signal) -> None:
    work.changes.canceled_steps.append(step.id)
    work.changes.ended_waits.append(step.id)
    work.touch(step)
    work.run.open_steps -= 1
    step.state = next_state(step.object_type, step.path, step.state, signal)
    cancellation.cancel_children_below(work, step, f"{action.kind} by hand", action.actor)


def _replace(work: WorkingSet, outline: Outline, row: OutlineRow, ended: Step) -> None:
    """Replace a failed step by one that ends as somebody has decided."""
    chosen = generations.from_steps(work.plan, outline, [row], only_failed=True)
    open_generation(work, outline, chosen, ended)


# --- rows ---


def named_row(outline: Outline, name: str) -> OutlineRow:
    """Return the row of a step or a foreach item by its path or id, or refuse the action."""
    for kind in (RowKind.STEP, RowKind.ITEM):
        if (row := outline.rows.get(row_key(kind, name))) is not None:
            return row
    paths = []
    for row in outline.rows.values():
        # An item without a row of its own is its only step.
        is_item = row.path.rpartition(".")[0] == name and _is_virtual(outline, row)
        is_call = row.is_function_call and row.path == name
        if is_item or is_call or row.id == name:
            return row
        if row.object_type in ObjectType.STEPS:
            paths.append(row.path)
    raise Refused(f"the run has no step {name!r}{Suggestions().near(name, paths)}")


def _is_virtual(outline: Outline, row: OutlineRow) -> bool:
    above = outline.rows.get(row.parent or "")
    return above is not None and above.object_type == ObjectType.FAN and not row.is_block


def open_generation(
    work: WorkingSet,
    outline: Outline,
    chosen: Generation,
    ended: Step | None = None,
    inputs: dict[str, Any] | None = None,
) -> None:
    """Supersede the chosen rows, stop their tasks and timers, and let the run go on.

    `ended` takes the place of one of them; `inputs` are those of a fork, if they are others.
    """
    run = work.run
    work.want(chosen.renewed)
    before = {key: work.get(key) for key in chosen.renewed}
    rows = [outline.rows[key] for key in sorted(chosen.superseded)]
    results = event_results(work, outline, chosen, before)
    successors = [
        renewed(work, outline, outline.rows[key], before[key], stage, results)
        for key, stage in chosen.renewed.items()
    ]
    for step in successors:
        if inputs is not None and step.key == work.root_key:
            step.params = {**work.root_plan.defaults, **inputs}
        # Like a new row, one that begins anew is told the ends of all steps of its block, also of
        # those that are kept; one that goes on from a later stage is not.
        begins = step.state == StepState.CREATED
        awaited = outline.awaited(work.plan, outline.rows[step.key])
        step.waiting = sum(
            1 for key, is_beside in awaited if key in chosen.superseded or (begins and is_beside)
        )
        _count_kept_calls(outline, chosen, before[step.key], step)
    at_event = [row.id for row in rows if row.state == StepState.EVENT_TRANSMIT]
    work.changes.canceled_steps += at_event
    work.changes.ended_waits += at_event
    run.open_steps -= len(at_event)
    run.step_count -= sum(1 for key in chosen.rerun if not _is_recounted(outline, chosen, key))
    run.generation += 1
    if run.state in RunState.FINAL:
        run.state = RunState.RUNNING
    run.outputs = run.error = run.alarm = None
    _end_deadlines(work, rows)
    work.supersede(rows)
    for step in successors if ended is None else [*successors, ended]:
        work.renew(step)
        if step.state == StepState.BLOCKS_BEGIN and step.key != work.root_key:
            deadline = work.statement(step).deadline
            if deadline is not None:
                deadlines.set_timer(work, step, deadline)
    if run.deadline is not None and run.deadline > work.now:  # one that has passed is over
        deadlines.set_run_timer(work, work.get(work.root_key))
    work.queue.append(work.get(work.root_key))


def _count_kept_calls(outline: Outline, chosen: Generation, old: Step, new: Step) -> None:
    """Let a renewed function go on behind the ends of the calls that it keeps."""
    calls = [child for child in outline.children(new.key) if child.is_function_call]
    kept = [call for call in calls if call.key not in chosen.superseded]
    if kept:
        new.item_count = old.item_count
        new.remaining = sum(1 for call in kept if not call.is_final)


def _end_deadlines(work: WorkingSet, rows: Sequence[OutlineRow]) -> None:
    """Remove the timers of superseded steps that have not ended, and that of the run."""
    for row in rows:
        if row.is_final and row.key != work.root_key:
            continue
        if row.key == work.root_key:
            if work.run.deadline is not None:
                work.changes.remove_timer(id_within(row.id, deadlines.RUN_TIMER))
        elif row.is_function_call:
            if plan_of_call(row.address).deadline is not None:
                work.changes.remove_timer(id_within(row.id, deadlines.TIMER))
        elif not row.is_block and work.plan.statements[row.address].deadline is not None:
            work.changes.remove_timer(id_within(row.id, deadlines.TIMER))


def _is_recounted(outline: Outline, chosen: Generation, key: str) -> bool:
    """Whether a row is an item of a renewed foreach: the items of a foreach are counted once.

    The entries of a conversation with a model are not counted at all.
    """
    row = outline.rows[key]
    if row.parent is None:
        return False
    above = outline.rows[row.parent]
    if row.is_function_call:
        return function_of(above.facet_name) is None
    return above.object_type == ObjectType.FAN and above.key in chosen.renewed
