"""The rows on a path, read off the plan: they can be loaded without following parent links."""

from __future__ import annotations

from flowengine.evaluator.records import row_key
from flowengine.program.addresses import RowKind
from flowengine.program.plan import BlockPlan, FacetPlan, StatementPlan


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
    bodies = [body.blocks for body in (plan.always, plan.body) if body]
    only = None
    for block in (*plan.catches, *(block for blocks in bodies for block in blocks)):
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
