"""The rows that take the place of superseded ones.

A successor has the same key, and goes on from the stage whose results the run keeps.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flowengine.evaluator import generations
from flowengine.evaluator.generations import ALWAYS, BEGIN, BODY, CATCH, Generation
from flowengine.evaluator.outline import Outline, OutlineRow
from flowengine.evaluator.pre_steps import capture_mixins
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind


def successor(old: Step) -> Step:
    """Return a row like the old one, without results and counts."""
    new = old.copied()
    new.state = StepState.CREATED
    new.waiting = new.remaining = new.item_count = new.next_index = 0
    new.returns, new.error, new.failure, new.yields = {}, None, None, []
    new.activation, new.heard = 0, ()
    return new


def renewed(
    work: WorkingSet,
    outline: Outline,
    row: OutlineRow,
    old: Step,
    stage: int,
    results: dict[str, dict[str, Any] | None],
) -> Step:
    """Return the successor of a row that goes on from a stage."""
    new = successor(old)
    children = outline.children(row.key)
    has_body = stage > BEGIN and any(
        generations.stage_of(work.plan, row, child) == BODY for child in children
    )
    if row.object_type == ObjectType.FAN:
        if old.state != StepState.CANCELLED:  # a cancelled foreach has forgotten its last items
            # Its list is the same, or the foreach would be rerun.
            new.state, new.item_count = StepState.EXECUTION_CONTINUE, old.item_count
            new.remaining = old.item_count
    elif stage >= ALWAYS:
        new.state, new.returns, new.yields = StepState.ALWAYS_BEGIN, old.returns, old.yields
        new.next_index, new.error = old.next_index, _before_always(old)
    elif stage >= CATCH and generations.is_event(work.plan, row) and not has_body:
        # Its event failed, and is not asked again.
        new.state, new.next_index = StepState.CATCH_BEGIN, stage - CATCH
        failed = {child.address for child in children if child.state == StepState.ERROR}
        new.error = _caught(work, old, stage - CATCH, failed)
    elif has_body and row.object_type == ObjectType.WORKFLOW:
        new.state = StepState.BLOCKS_BEGIN
    elif has_body and (result := results.get(old.key)) is not None:
        new.state, new.returns = StepState.BLOCKS_BEGIN, result
    elif row.object_type == ObjectType.WORKFLOW:
        new.params = _inputs(work, old)
    if new.state in (StepState.BLOCKS_BEGIN, StepState.CATCH_BEGIN):
        mixins = work.step_plan(old).mixins
        if mixins and all(mixin.alias in new.params for mixin in mixins):
            capture_mixins(work, new)  # yields may have changed the values of mixins
    return new


def _inputs(work: WorkingSet, root: Step) -> dict[str, Any]:
    """Return the inputs of a run, without the results of its script and its mixins."""
    plan = work.root_plan
    params = root.params
    if plan.pre_script is not None:
        script = work.find(row_key(RowKind.STEP, f"{root.path}[script]"))
        if script is not None and "params" in script.params:
            given = work.read(script.params["params"])
            assert isinstance(given, dict)
            params = given
    declared = {param.name for param in plan.params}
    return {name: v for name, v in params.items() if name in declared or name not in plan.aliases}


def event_results(
    work: WorkingSet, outline: Outline, chosen: Generation, before: dict[str, Step]
) -> dict[str, dict[str, Any] | None]:
    """Return the results of renewed event facets that are past their event, by key.

    The row of a step whose body has completed holds them merged with the yields of the body.
    """
    found: dict[str, dict[str, Any] | None] = {}
    merged: list[str] = []
    for key, stage in chosen.renewed.items():
        row, old = outline.rows[key], before[key]
        if stage == BEGIN or stage >= ALWAYS or not generations.is_event(work.plan, row):
            continue
        closes = any(
            generations.stage_of(work.plan, row, child) == ALWAYS for child in outline.children(key)
        )
        if closes or old.state == StepState.COMPLETE:
            merged.append(key)
        else:
            found[key] = old.returns
    if merged:
        reported = work.event_results(merged)
        found |= {key: reported[key] for key in merged}
    return found


def _caught(
    work: WorkingSet, old: Step, number: int, failed: Collection[str]
) -> dict[str, Any] | None:
    """Return the error that a catch of a step handles.

    A catch that fails wraps the error that it got. `failed` are the addresses of such blocks.
    """
    error: dict[str, Any] | None = old.error
    if old.failure is not None and "caught" in old.failure:
        error = old.failure["caught"]
    for block in reversed(work.step_plan(old).catches[number:]):
        if block.address in failed and error is not None:
            error = error.get("cause", error)
    return error


def _before_always(old: Step) -> dict[str, Any] | None:
    """Return the error of a step as it was before its always block."""
    error, failure = old.error, old.failure
    if not old.is_final or failure is None or "rank" not in failure:
        is_skipped = old.state == StepState.SKIPPED
        return {**error, "skipped": True} if error is not None and is_skipped else error
    for name in ("before", "skipped"):  # the latter is of earlier versions
        if name in failure:
            before: dict[str, Any] = failure[name]
            return before
    if error == failure["error"]:
        return None
    return (error or {}).get("cause", error)  # of earlier versions


def fails_in_always(step: Step) -> bool:
    """Whether a step had completed before its always block failed."""
    failure = step.failure
    if failure is None or "rank" not in failure or "before" in failure or "skipped" in failure:
        return False
    return bool(step.error == failure["error"])
