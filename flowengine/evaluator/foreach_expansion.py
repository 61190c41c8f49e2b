"""A foreach begins its items in order, a portion at a time; they end in any order.

The next index is stored, so that a commit stays small however long the list is. With a limit
the end of an item begins the next one, and the row holds the next items: to begin one must not
mean to read a list of a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.evaluator.failures import StepFailed, StepSkipped, await_children, excerpt
from flowengine.evaluator.records import Error, FollowUp, Step
from flowengine.evaluator.scope import RowScope, source_key, virtual_item
from flowengine.evaluator.states import ObjectType, Signal
from flowengine.evaluator.steps import create_statement
from flowengine.evaluator.working_set import WorkingSet
from flowengine.evaluator.yields import item_keys
from flowengine.program.addresses import RowKind
from flowengine.program.expressions import EvaluationError, evaluate
from flowengine.program.json_reader import is_count
from flowengine.program.limits import Limits
from flowengine.program.nodes import Expression, InputRef, Json, StepRef
from flowengine.program.plan import BlockPlan, ForeachPlan

#: Items that the row of a foreach with a limit holds ahead.
AHEAD = 100


def begin(work: WorkingSet, fan: Step, plan: BlockPlan) -> Signal:
    """Count the items, and evaluate the limit of items in progress."""
    foreach = _foreach(plan)
    items = _items(work, fan, foreach)
    if not isinstance(foreach.iterable, InputRef | StepRef):
        work.account(items, fan.path)
    work.require(len(items), fan.path)
    work.run.step_count += len(items)  # now: loops that begin together share the limit
    if foreach.limit is not None:
        limit = _value(work, fan, foreach, foreach.limit)
        if not is_count(limit):
            message = f"the limit of a foreach must be a whole number of at least 1, not {limit!r}"
            raise StepFailed("EvaluationError", message, fan.path)
        fan.params = {"limit": limit}
    fan.item_count = fan.remaining = len(items)
    return Signal.ADVANCE


def go_on(work: WorkingSet, fan: Step) -> Signal | None:
    """Begin further items, and advance when all have ended."""
    if fan.next_index < fan.item_count:
        _begin_items(work, fan)
    signal = await_children(work, fan)
    if signal is Signal.FAIL and fan.failure is not None:
        fan.error = _error_of_items(fan, fan.failure, work.limits)
    return signal


def _error_of_items(fan: Step, failure: Mapping[str, Any], limits: Limits) -> Error:
    """The error of the first failed item, with the others listed when more have failed."""
    first, count = failure["error"], failure["count"]
    listed = [error for _, error in failure["items"]]
    if count == 1:
        return dict(first)
    messages = "; ".join(f"[{entry['index']}] {entry['message']}" for entry in listed)
    more = f"; and {count - len(listed)} more" if count > len(listed) else ""
    message = f"{first['message']} ({count} of {fan.item_count} items failed: {messages}{more})"
    return excerpt({**first, "message": message, "items": listed, "count": count}, limits)


def _begin_items(work: WorkingSet, fan: Step) -> None:
    plan = work.block(fan)
    foreach = _foreach(plan)
    room = fan.item_count
    if fan.is_limited:
        ended = fan.item_count - fan.remaining
        room = min(room, ended + work.read(fan.params["limit"]))
    end = min(room, fan.next_index + work.portion)
    items = None if fan.is_limited else _items(work, fan, foreach)
    work.want_kept(item_keys(plan, fan.path, range(fan.next_index, end)))
    before = work.run.step_count
    for index in range(fan.next_index, end):
        value = _ahead(work, fan, foreach, index) if items is None else items[index]
        if foreach.single_call is not None:
            item = virtual_item(fan, index)
            item.params = {foreach.variable: value}
            create_statement(work, item, foreach.single_call)
            continue
        path = f"{fan.path}[{index}]"
        item = work.create(RowKind.ITEM, path, ObjectType.ITEM, plan.address, fan, index)
        if item.key in work.adopted:
            continue
        item.params = {foreach.variable: value}
        work.queue.append(item)
    work.portion -= end - fan.next_index
    work.run.step_count = before  # counted when the foreach began
    fan.next_index = end
    if end < room:
        work.changes.follow_ups.append(FollowUp("Expand", {"step_key": fan.key}))


def _ahead(work: WorkingSet, fan: Step, foreach: ForeachPlan, index: int) -> Json:
    """Return one item from those that the row holds; load the next ones when it is beyond."""
    first = fan.params.get("first", 0)
    ahead = work.read(fan.params.get("ahead", []))
    if not first <= index < first + len(ahead):
        first, ahead = index, _items(work, fan, foreach)[index : index + AHEAD]
        fan.params = {**fan.params, "first": first, "ahead": ahead}
    return ahead[index - first]


def _items(work: WorkingSet, fan: Step, foreach: ForeachPlan) -> list[Json]:
    items = _value(work, fan, foreach, foreach.iterable)
    if not isinstance(items, list):
        message = f"foreach needs a list, found {type(items).__name__}"
        raise StepFailed("EvaluationError", message, fan.path)
    return items


def _value(work: WorkingSet, fan: Step, foreach: ForeachPlan, expression: Expression) -> Json:
    container = work.parent(fan)
    needed = [source_key(work, container, source) for source in foreach.needs]
    work.want(needed)
    for key in needed:
        row = work.find(key)  # None: not created, because another step has failed
        if row is not None and row.has_failed:
            raise StepSkipped(row)
    try:
        return evaluate(expression, RowScope(work, container, foreach.sources))
    except EvaluationError as error:
        raise StepFailed(error.kind, str(error), fan.path) from None


def _foreach(plan: BlockPlan) -> ForeachPlan:
    assert plan.foreach is not None
    return plan.foreach
