"""Steps that run before the event or the body of their facet: a script, then mixins.

The result of the script is merged into the parameters of the step. The arguments and results of
a mixin are a map among those parameters, below the mixin's alias. So the event, the body and
later steps read it like any parameter, and yields to the mixin are merged into that map.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from flowengine.evaluator.failures import StepFailed, await_children
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import RowScope
from flowengine.evaluator.states import Signal
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.nodes import Json
from flowengine.program.plan import MixinPlan, StatementPlan


def begin_script(work: WorkingSet, step: Step) -> Signal:
    plan = work.step_plan(step).pre_script
    assert plan is not None
    _begin(work, step, plan, f"{step.path}[script]", -1000)
    step.remaining = 1
    return Signal.ADVANCE


def _begin(work: WorkingSet, step: Step, plan: StatementPlan, path: str, index: int) -> None:
    created = work.create(RowKind.STEP, path, plan.kind.value, plan.address, step, index)
    if created.key not in work.adopted:
        created.facet_name = plan.target
        work.queue.append(created)


def capture_script(work: WorkingSet, step: Step) -> Signal | None:
    """Merge the result of the script into the parameters."""
    signal = await_children(work, step)
    if signal is not Signal.ADVANCE:
        return signal
    step.params = {**step.params, **result_of(work, row_key(RowKind.STEP, f"{step.path}[script]"))}
    return Signal.MIX if work.step_plan(step).mixins else Signal.ADVANCE


def result_of(work: WorkingSet, key: str) -> dict[str, Json]:
    script = work.get(key)
    result = work.read(script.returns.get("result"))
    if not isinstance(result, dict):
        raise StepFailed("ScriptFailed", "the script gave no map", script.path)
    return result


# --- mixins ---


def begin_mixins(work: WorkingSet, step: Step) -> Signal:
    """Create the steps of the mixins; they run side by side."""
    mixins = work.step_plan(step).mixins
    work.want_kept(row_key(RowKind.STEP, _path(step, mixin)) for mixin in mixins)
    for position, mixin in enumerate(mixins):
        index = position - len(mixins)  # before the blocks of the body
        _begin(work, step, mixin.statement, _path(step, mixin), index)
    step.remaining = len(mixins)
    return Signal.ADVANCE


def mixin_arguments(
    work: WorkingSet, mixin: Step, plan: StatementPlan, scope: RowScope
) -> dict[str, Any]:
    """The arguments of the call for the mixin, else those of the signature."""
    given: dict[str, Any] = work.read(work.parent(mixin).params.get(plan.name, {}))
    return scope.values((n, value) for n, value in plan.arguments if n not in given) | given


def capture_mixins(work: WorkingSet, step: Step) -> Signal:
    """Add the arguments and results of the mixins to the parameters."""
    mixins = work.step_plan(step).mixins
    work.want([row_key(RowKind.STEP, _path(step, mixin)) for mixin in mixins])
    for mixin in mixins:
        row = work.get(row_key(RowKind.STEP, _path(step, mixin)))
        whole = {name: work.read(v) for name, v in {**row.params, **row.returns}.items()}
        work.account(whole, step.path)
        step.params = {**step.params, mixin.alias: whole}
    return Signal.ADVANCE


def with_aliases(work: WorkingSet, step: Step, aliases: Collection[str]) -> dict[str, Any]:
    """The results of a step, and the values of its mixins as ``alias.name``."""
    if not aliases:
        return step.returns
    held = {alias: work.read(step.params.get(alias, {})) for alias in aliases}
    return {
        **step.returns,
        **{f"{alias}.{name}": v for alias, values in held.items() for name, v in values.items()},
    }


def split_aliases(work: WorkingSet, step: Step, aliases: Collection[str]) -> None:
    """Move the values of mixins from the results back to the parameters."""
    for alias in aliases:
        prefix = f"{alias}."
        held = {n: v for n, v in step.returns.items() if n.startswith(prefix)}
        step.returns = {n: v for n, v in step.returns.items() if n not in held}
        whole = {n.removeprefix(prefix): work.read(v) for n, v in held.items()}
        work.account(whole, step.path)
        step.params = {**step.params, alias: whole}


def _path(step: Step, mixin: MixinPlan) -> str:
    return f"{step.path}[with-{mixin.alias}]"
