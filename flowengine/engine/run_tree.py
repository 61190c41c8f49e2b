"""The tree of a run's steps, limited to the size of a page.

A run may have 100,000 steps, and its page is reloaded every few seconds. So a limited number of
rows is read, only a few short columns of each; names, errors and tries only of the shown steps,
and values of none. The database counts the rest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flowengine.engine.call_lines import HiddenCalls, is_call, shown_calls
from flowengine.engine.results import child_run_of, seen_state
from flowengine.engine.rounds import Round, Rounds
from flowengine.engine.run_waits import Waits
from flowengine.engine.step_tries import StepTries, allowed_tries, tries_by_step
from flowengine.engine.tree_lines import HiddenItems as HiddenItems
from flowengine.engine.tree_lines import RunTree as RunTree
from flowengine.engine.tree_lines import StepLine as StepLine
from flowengine.engine.tree_lines import with_awaited
from flowengine.engine.waits_for import step_waits_for
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store import Session
from flowengine.store.shown_values import shown_error
from flowengine.store.steps import StepDetails, TreeStep

#: Of a foreach with more items only the first and the failed items are shown, the others counted.
WIDE = 200
_FIRST_ITEMS = 50
#: Rounds shown of a long loop, and those that failed; the others are counted.
_FIRST_ROUNDS, _LAST_ROUNDS = 10, 40
_MAX_FAILED_ITEMS = 1000
#: Calls shown of a durable function, and those that are open or failed; the others are counted.
_FIRST_CALLS, _LAST_CALLS, _MAX_OTHER_CALLS = 50, 100, 1000
MAX_LINES = 5000  #: browsers are slow with more
MAX_BYTES = 8 * 1024 * 1024  #: of paths and errors
_PORTION = 500  # steps whose details are read together
_ROWS_PER_LINE = 4  # blocks have no line
_MAX_COUNTED = 1_000_000  # steps
_FAILED = (StepState.ERROR, StepState.SKIPPED, StepState.CANCELLED)


ItemCounts = Mapping[str, Mapping[str, int]]  #: of wide loops: by key, then by state


@dataclass(frozen=True, slots=True)
class _Line:
    """A line before its details are read."""

    depth: int
    under: str | None  #: id of the row of its parent line
    row: TreeStep
    round: Round[TreeStep] | None = None


def load_run_tree(
    session: Session, run_id: str, most: int = MAX_LINES, most_bytes: int = MAX_BYTES
) -> RunTree:
    """Return up to `most` lines of a run's tree, with `most_bytes` of paths and errors at most."""
    limit = _ROWS_PER_LINE * most
    rows = session.steps.skeleton(
        run_id, wide=WIDE, first=_FIRST_ITEMS, shown=_FAILED, most=limit + 1
    )
    counts = session.steps.item_counts(run_id, wide=WIDE)
    lines, is_cut = _lines(rows[:limit], counts, most)
    details = _details(session, lines, most_bytes)
    cut = next((at for at, line in enumerate(lines) if _lacks(line, details)), len(lines))
    lines, is_cut = lines[:cut], is_cut or cut < len(lines)
    tries = _tries(session, run_id, list(details), most_bytes)
    run = session.runs.get(run_id) if any(tried.failed for tried in tries.values()) else None
    allowed = allowed_tries(session, run.program_hash) if run else {}
    waits, now = Waits.of_steps(session, run_id, details.values()), session.now()
    ended, steps = session.steps.progress([run_id], _MAX_COUNTED)[run_id]
    shown = [
        _with_details(line, details, tries, allowed, waits, now)
        if isinstance(line, _Line)
        else line
        for line in lines
    ]
    return RunTree(
        lines=with_awaited(shown),
        steps=steps,
        steps_ended=ended,
        is_cut=is_cut or len(rows) > limit,
    )


def _details(
    session: Session, lines: Sequence[_Line | HiddenItems], most_bytes: int
) -> dict[str, StepDetails]:
    """Return names, errors and times of the steps of the first lines, up to that size."""
    ids = [line.row.id for line in lines if isinstance(line, _Line)]
    found: dict[str, StepDetails] = {}
    for at in range(0, len(ids), _PORTION):
        portion = session.steps.details(ids[at : at + _PORTION])
        found |= portion
        most_bytes -= sum(len(row.path) + len(row.error or "") for row in portion.values())
        if most_bytes < 0:
            break
    return found


def _tries(
    session: Session, run_id: str, step_ids: Sequence[str], most_bytes: int
) -> dict[str, StepTries]:
    """Return the tries of these steps; errors of earlier tries up to that size."""
    now = session.now()
    rows = session.tasks.tries(run_id, step_ids)
    counts = Counter(row.step_id for row in rows)
    found = tries_by_step(session, rows, now)
    repeated = [step_id for step_id in step_ids if counts[step_id] > 1]
    for at in range(0, len(repeated), _PORTION):
        portion = session.tasks.tries(run_id, repeated[at : at + _PORTION], errors=True)
        found |= tries_by_step(session, portion, now)
        most_bytes -= sum(len(row.error or "") for row in portion)
        if most_bytes < 0:
            break
    return found


def _lacks(line: _Line | HiddenItems, details: Mapping[str, StepDetails]) -> bool:
    return isinstance(line, _Line) and line.row.id not in details


def _lines(
    rows: Sequence[TreeStep], counts: ItemCounts, most: int
) -> tuple[list[_Line | HiddenItems], bool]:
    """Select the shown lines. Blocks are not shown, only their steps and items."""
    children: defaultdict[str | None, list[TreeStep]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.position):
        children[row.parent].append(row)
    rounds = Rounds(children, lambda row: row.facet_name)
    lines: list[_Line | HiddenItems] = []
    # Iterative: a recursive workflow may exceed the recursion limit.
    pending: list[_Line | HiddenItems] = [_Line(0, None, r) for r in reversed(children[None])]
    while pending and len(lines) < most:
        line = pending.pop()
        lines.append(line)
        if isinstance(line, _Line):
            visible = [] if line.round else _round_lines(line, rounds)
            if not visible:
                under = (line.row.id, line.depth + 1)
                visible = _visible_children(line.row, *under, children, rounds, counts)
            pending += reversed(visible)
    return lines, bool(pending)


def _round_lines(first: _Line, rounds: Rounds[TreeStep]) -> list[_Line | HiddenItems]:
    """The lines of the rounds of a loop that begins with a step, and the number of all others."""
    lines: list[_Line | HiddenItems] = []
    depth = first.depth + 1
    for shown in rounds.of(first.row, _FIRST_ROUNDS, _LAST_ROUNDS):
        if isinstance(shown, Round):
            lines.append(_Line(depth, first.row.id, shown.step, shown))
        else:
            states = Counter(one.step.state for one in shown)
            lines.append(HiddenItems(depth, dict(states.most_common()), kind="rounds"))
    return lines


def _visible_children(
    row: TreeStep,
    under: str,
    depth: int,
    children: Mapping[str | None, list[TreeStep]],
    rounds: Rounds[TreeStep],
    counts: ItemCounts,
) -> list[_Line | HiddenItems]:
    if row.object_type == ObjectType.FAN and row.item_count > WIDE:
        return _wide(row, under, depth, children.get(row.key, ()), counts.get(row.key, {}))
    below = children.get(row.key, ())
    # A step that calls may also have a body, or blocks that catch its errors.
    lines = _call_lines(under, depth, [child for child in below if is_call(child)])
    for child in below:
        if is_call(child):
            continue
        if rounds.is_frame(child):
            lines += _visible_children(child, under, depth, children, rounds, counts)
        elif not rounds.is_elsewhere(child):
            lines.append(_Line(depth, under, child))
    return lines


def _wide(
    fan: TreeStep, under: str, depth: int, items: Sequence[TreeStep], counts: Mapping[str, int]
) -> list[_Line | HiddenItems]:
    """The lines of the first and the failed items, and the number of all others."""
    lines: list[_Line | HiddenItems] = []
    rest = Counter(counts)
    rest[StepState.CREATED] += fan.item_count - sum(counts.values())  # not expanded: without row
    failed = 0
    for item in items:
        is_failed = item.state in _FAILED
        failed += is_failed
        if item.position < _FIRST_ITEMS or failed <= _MAX_FAILED_ITEMS:
            lines.append(_Line(depth, under, item))
            rest[item.state] -= 1
    hidden = {state: count for state, count in rest.most_common() if count > 0}
    return [*lines, HiddenItems(depth, hidden)] if hidden else lines


def _call_lines(under: str, depth: int, calls: Sequence[TreeStep]) -> list[_Line | HiddenItems]:
    """The lines of the calls of a durable function, and the number of those that are hidden."""
    lines: list[_Line | HiddenItems] = []
    for shown in shown_calls(calls, first=_FIRST_CALLS, last=_LAST_CALLS, most=_MAX_OTHER_CALLS):
        if isinstance(shown, HiddenCalls):
            states = Counter(call.state for call in shown.calls)
            lines.append(HiddenItems(depth, dict(states.most_common()), kind="calls"))
        else:
            lines.append(_Line(depth, under, shown))
    return lines


def _with_details(
    line: _Line,
    details: Mapping[str, StepDetails],
    tries: Mapping[str, StepTries],
    allowed: Mapping[str, int],
    waits: Waits,
    now: int,
) -> StepLine:
    row = line.row
    step, tried = details[row.id], tries.get(row.id)
    parent_path = details[line.under].path if line.under else ""
    one = line.round
    state = seen_state(row.state, tried.state if tried else None)
    found = StepLine(
        depth=line.depth,
        name=one.name if one else step.path[len(parent_path) :].lstrip("."),
        path=step.path,
        facet=step.facet_name,
        state=state,
        error=shown_error(step.error, step.path),
        created=step.created,
        updated=step.updated,
        tries=0,
        losses=0,
        task_state=None,
        task_list=None,
        round=one.number if one else None,
        failed_in=one.failed_in if one else None,
        own_time=one.own_time if one else None,
        wakes_at=waits.wakes_at.get(row.id),
        question=waits.questions.get(row.key, ""),
    )
    if tried is not None:
        found = _with_tries(found, step, tried, allowed)
    return replace(found, waits_for=step_waits_for(found, now))


def _with_tries(
    line: StepLine, step: StepDetails, tried: StepTries, allowed: Mapping[str, int]
) -> StepLine:
    return replace(
        line,
        updated=max(line.updated, tried.updated),
        child_run=child_run_of(step.id, line.facet, line.state, tried.child_run),
        **tried.shown(allowed.get(line.facet), step.activation),
    )
