"""The names that an expression can read at one row of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.working_set import BYTES_PER_PART, WorkingSet
from flowengine.program.addresses import RowKind, Sources, StepSource
from flowengine.program.expressions import EvaluationError, evaluate
from flowengine.program.limits import Limits
from flowengine.program.nodes import Expression, InputRef, Json, Literal, StepRef
from flowengine.program.scopes import ERROR_NAMES
from flowengine.program.value_size import ValueTooLarge, checked_size

#: The keys of an error, by the names that a catch reads.
_ERROR_KEYS = {"error": "message", "error_type": "type", "error_path": "path"}


def _of_error(step: Step, name: str) -> Json:
    """Return one part of a step's error; null, in an always block, when there is none."""
    error = step.error
    if error is None:
        return None
    if error.get("skipped"):
        # Of several reasons for a skip the first in time is stored: no program may depend on it.
        error = {"message": "skipped", "type": "Skipped", "path": step.path}
    if name == "error_types":  # an error of an older version has no bases
        return [error["type"], *error.get("bases", ())]
    return error[_ERROR_KEYS[name]]


def source_key(work: WorkingSet, scope_row: Step, source: StepSource) -> str:
    """Return the key of the step at a source, seen from the scope row."""
    base = work.ancestor(scope_row, source.hops)
    return base.key if source.suffix is None else row_key(RowKind.STEP, base.path + source.suffix)


class RowScope:
    def __init__(self, work: WorkingSet, row: Step, sources: Sources) -> None:
        self._work, self._row, self._sources = work, row, sources
        self._parts_left = work.limits.max_expression_parts
        # All at once: a join of thousands of steps is one round trip to the store.
        work.want([source_key(work, row, source) for source in sources.steps.values()])

    @property
    def limits(self) -> Limits:
        return self._work.limits

    def spend(self, parts: int) -> None:
        self._parts_left -= parts
        self._work.changes.computed_bytes += parts * BYTES_PER_PART
        if self._parts_left < 0:
            raise ValueTooLarge(
                f"its expressions go through more than {self.limits.max_expression_parts:,} parts "
                "of values, which is the limit (setting max_expression_parts): use shorter values, "
                "or compare them in an event facet"
            )

    def input(self, name: str) -> Json:
        return self._work.read(self.raw_input(name))

    def step_attribute(self, name: str, attribute: str) -> Json:
        return self._work.read(self.raw_attribute(name, attribute))

    def whole_step(self, name: str) -> Json:
        step = self._step(name)
        whole = {**step.params, **step.returns}
        return {key: self._work.read(value) for key, value in whole.items()}

    def raw_input(self, name: str) -> Any:
        row = self._work.ancestor(self._row, self._sources.inputs[name])
        if name in ERROR_NAMES and row.state in StepState.HANDLING:
            return _of_error(row, name)
        if name not in row.params:
            raise EvaluationError(f"input {name} has no value")
        return row.params[name]

    def raw_attribute(self, name: str, attribute: str) -> Any:
        step = self._step(name)
        if attribute in ERROR_NAMES and step.state in StepState.HANDLING:
            return _of_error(step, attribute)
        for values in (step.returns, step.params):
            if attribute in values:
                return values[attribute]
        returned = ", ".join(sorted(step.returns)) or "nothing"
        raise EvaluationError(
            f"step {name!r} has no {attribute!r}: {step.facet_name or 'it'} returned {returned}"
        )

    def _step(self, name: str) -> Step:
        return self._work.get(source_key(self._work, self._row, self._sources.steps[name]))

    def value(self, expression: Expression) -> Any:
        """Evaluate; a large value that is passed on whole stays unread."""
        match expression:
            case InputRef((name,)):
                return self.raw_input(name)
            case StepRef((name, attribute)):
                return self.raw_attribute(name, attribute)
            case Literal(value):
                return value
        value = evaluate(expression, self)
        self._work.changes.computed_bytes += checked_size(value, self.limits)
        return value

    def values(self, expressions: Iterable[tuple[str, Expression]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, expression in expressions:
            try:
                found[name] = self.value(expression)
            except ValueTooLarge as error:
                raise ValueTooLarge(f"{name!r}: {error}") from None
        return found


# --- scope rows ---


def scope_row(work: WorkingSet, step: Step) -> Step:
    """Return the row from which the names in a statement are resolved: that of its block.

    For the step of a virtual item it is an item without a stored row. Only the evaluation that
    creates the step has the item's variable, and only that one reads it.
    """
    block = work.parent(step)
    if block.object_type != ObjectType.FAN:
        return block
    return work.virtual_items.get(step.key) or virtual_item(block, step.index)


def virtual_item(fan: Step, index: int) -> Step:
    path = f"{fan.path}[{index}]"
    return Step(
        id="",
        run_id=fan.run_id,
        key=row_key(RowKind.ITEM, path),
        path=path,
        object_type=ObjectType.ITEM,
        address=fan.address,
        parent=fan.key,
        index=index,
    )
