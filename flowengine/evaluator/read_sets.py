"""Prefetch: ask at once for the rows that inputs to the evaluator will need.

Read sets come from the linker; here they are instantiated for the rows of a run. Without them
an evaluation would stop at one missing row after the other. They decide nothing: a surplus row
costs its loading, a row that is absent costs one more round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flowengine.evaluator.records import Step, row_key
from flowengine.evaluator.scope import source_key
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.evaluator.triggers import Started, Trigger
from flowengine.evaluator.working_set import Missing, WorkingSet
from flowengine.evaluator.yields import item_keys
from flowengine.program.addresses import Base, RowAddress, RowKind
from flowengine.program.plan import BlockPlan, FacetPlan, StatementPlan

#: Rows above that are asked for at first, and then as a multiple of the rows that are loaded:
#: a nesting of any depth is loaded in a few rounds, with few surplus rows.
_NEAR, _FURTHER = 6, 16


def prefetch(work: WorkingSet, triggers: Sequence[Trigger]) -> None:
    """Want every row that the inputs concern."""
    keys = [trigger.step_key for trigger in triggers if not isinstance(trigger, Started)]
    if work.plan.has_recursion and keys:
        work.want([work.root_key, *keys])
    work.want(keys)
    rows = [row for key in keys if (row := work.look(key)) is not None]
    above: set[str] = set()
    waiting: dict[str, int] = {}
    for row in rows:
        read_set = work.plan_of(row).read_set
        if row.parent not in above or read_set.levels > 2:
            above.update(_above(work, row, read_set.levels))
        if read_set.waiting:
            for key in _addressed(work, row, read_set.waiting):
                waiting[key] = waiting.get(key, 0) + 1
    work.want(above.union(waiting))
    # A foreach that has further items to begin does not end now.
    ending = [row for row in rows if row.object_type not in ObjectType.BLOCKS]
    keys_read = read_by_ends(work, ending)
    for key, count in waiting.items():
        keys_read.update(_read_at_begin(work, key, count))
    if keys_read:
        work.want(keys_read)


def read_by_ends(work: WorkingSet, rows: Iterable[Step]) -> set[str]:
    """Return the rows that are read if these rows end, and with them the rows above.

    Facets that call each other, or themselves, end one inside the other: found one by one, a
    nesting of two hundred levels would be evaluated two hundred times.
    """
    keys: set[str] = set()
    while rows:
        ended: dict[str, list[Step]] = {}
        for row in rows:
            if row.parent is not None and _may_end(work, row):
                ended.setdefault(row.parent, []).append(row)
        rows = []
        for key, children in ended.items():
            if not work.knows(key):
                further = _NEAR if work.loaded <= _NEAR else _FURTHER * work.loaded
                keys.update(_above(work, children[0], further))
                continue
            parent = work.look(key)
            if parent is not None and parent.remaining <= len(children):
                rows.append(parent)
                try:
                    keys.update(_read_at_end(work, parent))
                except Missing as missing:
                    keys |= missing.steps
    return keys


def _read_at_begin(work: WorkingSet, key: str, count: int) -> list[str]:
    """Return the steps that a waiting step reads, if `count` ends let it begin."""
    row = work.look(key)
    if row is None or row.parent is None or row.waiting > count or row.is_final:
        return []
    plan, block = work.plan_of(row), work.look(row.parent)
    if not isinstance(plan, StatementPlan) or block is None:
        return []
    return [source_key(work, block, source) for source in plan.sources.steps.values()]


def _may_end(work: WorkingSet, row: Step) -> bool:
    """Whether a step whose event or body completes ends then, and its end begins no other."""
    plan = work.plan_of(row)
    if isinstance(plan, BlockPlan):
        return row.next_index >= row.item_count  # of a foreach: it has no further items to begin
    has_body = bool(plan.body) and row.state == StepState.EVENT_TRANSMIT
    return plan.read_set.is_last and not has_body


def _read_at_end(work: WorkingSet, row: Step) -> Iterator[str]:
    plan = work.plan_of(row)
    if row.object_type == ObjectType.FAN:
        return  # its items are read by the step whose body it is part of
    yield from _addressed(work, row, plan.read_set.captured)
    if isinstance(plan, BlockPlan):
        for source in (*plan.captures, *plan.yield_sources.steps.values()):
            if source.hops:
                yield source_key(work, row, source)
        return
    # The rows that its end touches: those above it, and those that wait for it.
    yield from _above(work, row, plan.read_set.levels)
    yield from _addressed(work, row, plan.read_set.waiting)
    for block in plan.body:
        key = row_key(block.kind, row.path + block.segment)
        fan = work.look(key) if block.foreach and work.knows(key) else None
        if fan is not None:
            yield from item_keys(block, fan.path, fan.item_count)


def _above(work: WorkingSet, row: Step, levels: int) -> list[str]:
    """The nearest rows above: by parent links as far as they are loaded, then by the path."""
    keys: list[str] = []
    above: Step | None = row
    while above is not None and above.parent is not None and len(keys) < levels:
        keys.append(above.parent)
        if not work.knows(above.parent):
            on_path = rows_on_path(work.root_plan, above.path)
            if above.parent in on_path:
                first = on_path.index(above.parent) + 1
                keys += on_path[first : first + levels - len(keys)]
            break
        above = work.look(above.parent)
    return keys


def _addressed(work: WorkingSet, row: Step, addresses: Sequence[RowAddress]) -> Iterator[str]:
    if not addresses:
        return
    paths = {Base.OWN: row.path}
    if row.object_type not in ObjectType.BLOCKS and row.parent is not None:
        statement = work.statement(row)
        block = row.path.removesuffix(f".{statement.name}")
        # The foreach block of an item ``path[7]`` is ``path``.
        around = block.rpartition("[")[0] if statement.block.foreach is not None else block
        paths[Base.BLOCK] = block
        paths[Base.CONTAINER] = around.removesuffix(statement.block.segment)
    for address in addresses:
        yield row_key(address.kind, paths[address.base] + address.suffix)


# --- rows on a path, read off the plan: they are loaded without following parent links ---


def rows_on_path(root: FacetPlan, path: str) -> list[str]:
    """Return the keys of the rows on a path, from its end to the root step.

    The path itself stands for a step, an item or a case; a block adds nothing to the path of
    its step when it is the only one, and then is not included.
    """
    rows: list[tuple[RowKind, int]] = []
    plan: FacetPlan | StatementPlan | None = root
    at = len(root.short_name)
    while plan is not None:
        rows.append((RowKind.STEP, at))
        if at == len(path):
            break
        if before := _before_body(plan, path, at):
            plan, at = before
            continue
        block = _block(plan, path, at)
        if block is None:
            break
        at += len(block.segment)
        rows.append((block.kind, at))
        if block.kind is not RowKind.BLOCK:
            at, inner = _inner(block, path, at)
            if inner is None:
                break
            if block.foreach is None or block.foreach.single_call is None:
                rows.append((RowKind.ITEM if block.foreach else RowKind.CASE, at))
            block = inner
        plan, at = _statement(block, path, at)
    return [row_key(kind, path[:end]) for kind, end in reversed(rows)]


def _before_body(
    plan: FacetPlan | StatementPlan, path: str, at: int
) -> tuple[StatementPlan, int] | None:
    """Return the mixin or script that runs before the body, and the end of its path."""
    named = [(f"[with-{mixin.alias}]", mixin.statement) for mixin in plan.mixins]
    named += [("[script]", plan.pre_script)] if plan.pre_script else []
    found = ((statement, at + len(mark)) for mark, statement in named if path.startswith(mark, at))
    return next(found, None)


def _block(plan: FacetPlan | StatementPlan, path: str, at: int) -> BlockPlan | None:
    only = None
    for block in (*plan.catches, *plan.always, *plan.body):
        end = at + len(block.segment)
        if not block.segment:
            only = block
        elif path.startswith(block.segment, at) and path[end : end + 1] in ("", ".", "["):
            return block
    return only


def _inner(block: BlockPlan, path: str, at: int) -> tuple[int, BlockPlan | None]:
    """Return the end of an item's or case's path, and the block that it is."""
    end = path.find("]", at) + 1
    if not end or block.choice is None:
        return end, block if end else None
    named = path[at - len(block.segment) : end]
    return end, next((case for case in block.choice.cases if case.segment == named), None)


def _statement(block: BlockPlan, path: str, at: int) -> tuple[StatementPlan | None, int]:
    ends = [end for mark in ".[" if (end := path.find(mark, at + 1)) >= 0]
    end = min(ends, default=len(path))
    name = path[at + 1 : end]
    return next((s for s in block.statements if s.name == name), None), end
