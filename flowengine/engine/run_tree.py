"""A run as far as a page can show it.

A run may have a hundred thousand steps, and a page that shows it is read again every few
seconds. So only the skeleton of the run is read whole, a few short columns of each row;
names, errors and tries are read of the steps that are drawn, and values of none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from flowengine.engine.results import parked_until, seen_state
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store import codec, steps, tasks

#: A foreach of more items is not drawn whole: its first items are, those that went wrong,
#: and the others are counted.
WIDE = 200
_FIRST_ITEMS = 50
_MOST_BAD_ITEMS = 1000  # when everything fails, the first thousand tell enough
_MOST_LINES = 5000  # more than that no browser shows with ease, and no person reads
_BAD = (StepState.ERROR, StepState.SKIPPED)


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step, or an item of a foreach, in its place in the tree."""

    depth: int
    name: str  #: the path as seen from the line it stands under
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
class DrawnRest:
    """Items of a foreach that are only counted."""

    depth: int
    counts: Mapping[str, int]  #: by state, the most frequent first


@dataclass(frozen=True, slots=True)
class Outline:
    """The steps of a run, as lines in the order of the program."""

    lines: Sequence[DrawnStep | DrawnRest]
    steps: int
    steps_ended: int
    is_cut: bool  #: there are more lines than a page can hold


@dataclass(frozen=True, slots=True)
class _Branch:
    """A line to be: a row, or the rest of a foreach, under the row it hangs from."""

    depth: int
    under: str | None  #: id of the row that is drawn above it
    row: Row[Any] | None = None
    rest: Mapping[str, int] | None = None


def outline(connection: Connection, run_id: str) -> Outline:
    rows = steps.skeleton(connection, run_id)
    branches, is_cut = _branches(rows)
    ids = [branch.row.id for branch in branches if branch.row is not None]
    flesh = steps.flesh(connection, ids)
    tries = tasks.last_tries(connection, run_id, ids)
    counted = [row.state in StepState.FINAL for row in rows if row.object_type in ObjectType.STEPS]
    return Outline(
        lines=[_line(branch, flesh, tries) for branch in branches],
        steps=len(counted),
        steps_ended=sum(counted),
        is_cut=is_cut,
    )


def _branches(rows: Sequence[Row[Any]]) -> tuple[list[_Branch], bool]:
    """Choose what is drawn. Blocks are not: their steps and items are."""
    children: defaultdict[str | None, list[Row[Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.position):
        children[row.parent].append(row)
    found: list[_Branch] = []
    # Not by recursion: a facet that calls itself nests as deep as it likes.
    to_do = [_Branch(0, None, root) for root in reversed(children[None])]
    while to_do and len(found) < _MOST_LINES:
        branch = to_do.pop()
        found.append(branch)
        if branch.row is not None:
            to_do += reversed(_below(branch.row, branch.row.id, branch.depth + 1, children))
    return found, bool(to_do)


def _below(
    row: Row[Any], under: str, depth: int, children: Mapping[str | None, list[Row[Any]]]
) -> list[_Branch]:
    if row.object_type == ObjectType.FAN and row.item_count > WIDE:
        return _wide(row, under, depth, children)
    found: list[_Branch] = []
    for child in children.get(row.key, ()):
        if child.object_type in ObjectType.FRAMES:
            found += _below(child, under, depth, children)
        else:
            found.append(_Branch(depth, under, child))
    return found


def _wide(
    fan: Row[Any], under: str, depth: int, children: Mapping[str | None, list[Row[Any]]]
) -> list[_Branch]:
    items = children.get(fan.key, ())
    found: list[_Branch] = []
    # Items that were not unfolded yet have no row, but they will.
    rest = Counter({StepState.CREATED: fan.item_count - len(items)})
    bad = 0
    for number, item in enumerate(items):
        is_bad = item.state in _BAD
        bad += is_bad
        if number < _FIRST_ITEMS or (is_bad and bad <= _MOST_BAD_ITEMS):
            found.append(_Branch(depth, under, item))
        else:
            rest[item.state] += 1
    counts = {state: count for state, count in rest.most_common() if count > 0}
    return [*found, _Branch(depth, under, rest=counts)] if counts else found


def _line(
    branch: _Branch, flesh: Mapping[str, Row[Any]], tries: Mapping[str, Row[Any]]
) -> DrawnStep | DrawnRest:
    row = branch.row
    if row is None:
        return DrawnRest(branch.depth, branch.rest or {})
    step, task = flesh[row.id], tries.get(row.id)
    circuit = tasks.circuit_of(task.limit_key) if task else ""
    above = flesh[branch.under].path if branch.under else ""
    return DrawnStep(
        depth=branch.depth,
        name=step.path[len(above) :].lstrip("."),
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
        parked_until=parked_until(circuit, task.state, task.lease, task.due) if task else None,
    )
