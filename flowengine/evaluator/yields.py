"""Yields: evaluated at the end of a block or item, merged into the results of a step.

They are merged in program order. Two lists are concatenated; otherwise the later value in
program or item order wins, whatever the order in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flowengine.evaluator.failures import StepFailed, item_error
from flowengine.evaluator.pre_steps import split_aliases, with_aliases
from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.result_types import captured_blocks, check_results
from flowengine.evaluator.scope import RowScope, virtual_item
from flowengine.evaluator.states import ObjectType, Signal
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.addresses import RowKind
from flowengine.program.expressions import EvaluationError
from flowengine.program.limits import DEFAULT_LIMITS
from flowengine.program.nodes import Json
from flowengine.program.plan import BlockPlan
from flowengine.program.value_size import ValueLimits, checked_size, too_many_bytes


class Merge:
    """The values of one step while yields are merged into them."""

    def __init__(
        self,
        values: dict[str, Any],
        read: Callable[[Any], Json],
        limits: ValueLimits = DEFAULT_LIMITS,
    ) -> None:
        self.values = dict(values)
        self._read, self._limits = read, limits
        # Lists created here, with their size: they may be extended in place.
        self._owned: dict[str, int] = {}

    def add(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            if name not in self.values:
                self.values[name] = value  # a large value stays unread
                continue
            old, new = self._read(self.values[name]), self._read(value)
            if not (isinstance(old, list) and isinstance(new, list)):
                self.values[name] = value
                self._owned.pop(name, None)
            elif name in self._owned:
                self._grow(name, new)
                old.extend(new)
            else:
                self._owned[name] = 0
                self._grow(name, old)
                self._grow(name, new)
                self.values[name] = [*old, *new]

    def _grow(self, name: str, part: list[Json]) -> None:
        self._owned[name] += checked_size(part, self._limits)
        if self._owned[name] > self._limits.max_computed_bytes:
            raise too_many_bytes(self._limits.max_computed_bytes)

    @property
    def computed_bytes(self) -> int:
        return sum(self._owned.values())

    def set_empty_list(self, name: str) -> None:
        """Set the attribute that an empty foreach would have filled with a list."""
        self.values.setdefault(name, [])


def capture(work: WorkingSet, step: Step) -> Signal:
    """Merge the yields of the body, and of a catch, into the results, in program order."""
    plan = work.step_plan(step)
    blocks = captured_blocks(work, step)
    if blocks:
        _want_yields(work, step, blocks)
        merge = Merge(with_aliases(work, step, plan.aliases), work.read, work.limits)
        try:
            step.yields = [entry for b in blocks for entry in _merge_block(work, step, b, merge)]
        except EvaluationError as error:
            raise StepFailed(error.kind, f"merged yields: {error}", step.path) from None
        if step.yields:
            work.account([attributes for _, attributes in step.yields], step.path)
        step.returns = merge.values
        work.changes.computed_bytes += merge.computed_bytes
        split_aliases(work, step, plan.aliases)
        check_results(work, step, blocks)
    elif step.object_type == ObjectType.CALL:
        yield_as_item(work, step)
    return Signal.ADVANCE if not plan.always else Signal.CLOSE


def _merge_block(
    work: WorkingSet, step: Step, plan: BlockPlan, merge: Merge
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Merge the yields of a block to the step; return those that go further out."""
    path = step.path + plan.segment
    if plan.foreach is None:
        sources = [work.get(row_key(plan.kind, path))]
    else:
        count = work.get(row_key(RowKind.FAN, path)).item_count
        sources = [work.get(key) for key in item_keys(plan, path, range(count))]
        # The same if all items failed and their errors were collected.
        is_empty = all(item.has_failed for item in sources)
        for levels, name in plan.foreach.empty_lists if is_empty else ():
            if levels == 0:
                merge.set_empty_list(name)
            else:
                yield levels - 1, {name: []}
        if plan.foreach.collects_errors:
            merge.add(
                {"errors": [item_error(item, work.limits) for item in sources if item.has_failed]}
            )
    for levels, attributes in (entry for source in sources for entry in source.yields):
        if levels == 0:
            merge.add(attributes)
        else:
            yield levels - 1, attributes


def _want_yields(work: WorkingSet, step: Step, blocks: Sequence[BlockPlan]) -> None:
    """Want all rows that hold yields: a wide foreach is read in one round trip."""
    work.want([row_key(plan.kind, step.path + plan.segment) for plan in blocks])
    for plan in blocks:
        if plan.foreach:
            path = step.path + plan.segment
            count = work.get(row_key(RowKind.FAN, path)).item_count
            work.want(item_keys(plan, path, range(count)))


def item_keys(plan: BlockPlan, path: str, indexes: Iterable[int]) -> Iterator[str]:
    """Return the keys of the rows that hold the yields of the items of a foreach."""
    call = plan.foreach.single_call if plan.foreach else None
    kind, rest = (RowKind.ITEM, "") if call is None else (RowKind.STEP, f".{call.name}")
    return (row_key(kind, f"{path}[{index}]{rest}") for index in indexes)


def yield_as_item(work: WorkingSet, step: Step) -> None:
    """Store the yields of a virtual item in its step."""
    fan = work.parent(step)
    if fan.object_type == ObjectType.FAN:
        step.yields = yielded(work, virtual_item(fan, step.index), work.block(fan), step.path)


def yielded(
    work: WorkingSet, row: Step, plan: BlockPlan, path: str
) -> list[tuple[int, dict[str, object]]]:
    """Evaluate the yields of a block from its row; an error gets the path."""
    scope = RowScope(work, row, plan.yield_sources)
    try:
        return [(y.levels, scope.values(y.attributes)) for y in plan.yields]
    except EvaluationError as error:
        raise StepFailed(error.kind, f"in its result: {error}", path) from None
