"""The tree of a run's steps, limited to the size of a page.

A run may have 100,000 steps, and its page is reloaded every few seconds. So only a few short
columns are read of every row; names, errors and tries only of the shown steps, and values of
none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from flowengine.engine.results import parked_until, seen_state
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store import Session, codec
from flowengine.store.records import circuit_of

#: Of a foreach with more items only the first and the failed items are shown, the others counted.
WIDE = 200
_FIRST_ITEMS = 50
_MAX_FAILED_ITEMS = 1000
_MAX_LINES = 5000  # browsers are slow with more
_FAILED = (StepState.ERROR, StepState.SKIPPED)


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step or an item of a foreach."""

    depth: int
    name: str  #: the path relative to its parent line
    path: str
    facet: str
    state: str
    error: dict[str, Any] | None
    created: int
    updated: int
    tries: int
    losses: int
    task_state: str | None
    task_list: str | None
    circuit: str = ""
    parked_until: int | None = None


@dataclass(frozen=True, slots=True)
class HiddenItems:
    """The number of items of a foreach that are not shown."""

    depth: int
    counts: Mapping[str, int]  #: by state, most frequent first


@dataclass(frozen=True, slots=True)
class RunTree:
    """The steps of a run as lines, in program order."""

    lines: Sequence[StepLine | HiddenItems]
    steps: int
    steps_ended: int
    is_cut: bool  #: some lines are missing because of the limit


@dataclass(frozen=True, slots=True)
class _Line:
    """A line before its details are read."""

    depth: int
    under: str | None  #: id of the row of its parent line
    row: Row[Any]


def load_run_tree(session: Session, run_id: str) -> RunTree:
    rows = session.steps.skeleton(run_id)
    lines, is_cut = _lines(rows)
    ids = [line.row.id for line in lines if isinstance(line, _Line)]
    details = session.steps.details(ids)
    tries = session.tasks.last_tries(run_id, ids)
    counted = [row.state in StepState.FINAL for row in rows if row.object_type in ObjectType.STEPS]
    return RunTree(
        lines=[
            _with_details(line, details, tries) if isinstance(line, _Line) else line
            for line in lines
        ],
        steps=len(counted),
        steps_ended=sum(counted),
        is_cut=is_cut,
    )


def _lines(rows: Sequence[Row[Any]]) -> tuple[list[_Line | HiddenItems], bool]:
    """Select the shown lines. Blocks are not shown, only their steps and items."""
    children: defaultdict[str | None, list[Row[Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.position):
        children[row.parent].append(row)
    lines: list[_Line | HiddenItems] = []
    # Iterative: a recursive workflow may exceed the recursion limit.
    pending: list[_Line | HiddenItems] = [_Line(0, None, r) for r in reversed(children[None])]
    while pending and len(lines) < _MAX_LINES:
        line = pending.pop()
        lines.append(line)
        if isinstance(line, _Line):
            pending += reversed(_visible_children(line.row, line.row.id, line.depth + 1, children))
    return lines, bool(pending)


def _visible_children(
    row: Row[Any], under: str, depth: int, children: Mapping[str | None, list[Row[Any]]]
) -> list[_Line | HiddenItems]:
    if row.object_type == ObjectType.FAN and row.item_count > WIDE:
        return _wide(row, under, depth, children)
    lines: list[_Line | HiddenItems] = []
    for child in children.get(row.key, ()):
        if child.object_type in ObjectType.FRAMES:
            lines += _visible_children(child, under, depth, children)
        else:
            lines.append(_Line(depth, under, child))
    return lines


def _wide(
    fan: Row[Any], under: str, depth: int, children: Mapping[str | None, list[Row[Any]]]
) -> list[_Line | HiddenItems]:
    items = children.get(fan.key, ())
    lines: list[_Line | HiddenItems] = []
    # Items that are not expanded yet have no row.
    rest = Counter({StepState.CREATED: fan.item_count - len(items)})
    failed = 0
    for number, item in enumerate(items):
        is_failed = item.state in _FAILED
        failed += is_failed
        if number < _FIRST_ITEMS or (is_failed and failed <= _MAX_FAILED_ITEMS):
            lines.append(_Line(depth, under, item))
        else:
            rest[item.state] += 1
    counts = {state: count for state, count in rest.most_common() if count > 0}
    return [*lines, HiddenItems(depth, counts)] if counts else lines


def _with_details(
    line: _Line, details: Mapping[str, Row[Any]], tries: Mapping[str, Row[Any]]
) -> StepLine:
    row = line.row
    step, task = details[row.id], tries.get(row.id)
    circuit = circuit_of(task.limit_key) if task else ""
    parent_path = details[line.under].path if line.under else ""
    return StepLine(
        depth=line.depth,
        name=step.path[len(parent_path) :].lstrip("."),
        path=step.path,
        facet=step.facet_name,
        state=seen_state(row.state, task.state if task else None),
        error=codec.load(step.error),
        created=step.created,
        updated=max(step.updated, task.updated) if task else step.updated,
        tries=task.try_number if task else 0,
        losses=task.losses if task else 0,
        task_state=task.state if task else None,
        task_list=task.task_list_name if task else None,
        circuit=circuit,
        parked_until=parked_until(circuit, task) if task else None,
    )
