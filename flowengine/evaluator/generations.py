"""The rows of a run that a retry replaces.

A final row never changes: a retry opens a new *generation* of the rows that must run again. Two
kinds of rows are superseded. A row that is *rerun* has no successor yet: it is created again, when
the row above it gets there, as in a run that has not reached it. A row that is *renewed* encloses
rows that are rerun: it gets a successor at once, which goes on from the stage in which these rows
belong to it. It takes over every row below that is neither rerun nor renewed, with its results and
its running tasks. All other rows are kept, and nobody reads or copies them.

    order                renewed: goes on with its body
      ├ charge           kept
      ├ ship (failed)    rerun
      └ mail (skipped)   rerun
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flowengine.evaluator.outline import Outline, OutlineRow
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.program.function_options import function_of
from flowengine.program.nodes import FacetKind
from flowengine.program.plan import BlockPlan, EdgeKind, FacetPlan, Plan, StatementPlan

#: The stages of a step, in their order. A catch has a stage of its own: CATCH and its number.
BEGIN, BODY, CATCH, ALWAYS = 0, 1, 2, 1_000


@dataclass
class Generation:
    """The rows that a retry supersedes, by key."""

    renewed: dict[str, int] = field(default_factory=dict)  #: with the stage to go on from
    rerun: set[str] = field(default_factory=set)

    @property
    def superseded(self) -> set[str]:
        return self.rerun | self.renewed.keys()


def stage_of(plan: Plan, row: OutlineRow, child: OutlineRow) -> int:
    """Return the stage of a row in which a row directly below it runs."""
    if row.is_block or not child.is_block:
        return BEGIN  # of a step: its script or a mixin
    step = _step_plan(plan, row)
    if step is None:
        return BODY  # of another program
    for number, block in enumerate(step.catches):
        if block.address == child.address:
            return CATCH + number
    return ALWAYS if any(block.address == child.address for block in step.always) else BODY


def _step_plan(plan: Plan, row: OutlineRow) -> FacetPlan | StatementPlan | None:
    if row.object_type == ObjectType.WORKFLOW:
        return plan.facets.get(row.address)
    return plan.statements.get(row.address)


def is_event(plan: Plan, row: OutlineRow) -> bool:
    if row.is_block or row.object_type == ObjectType.WORKFLOW:
        return False
    statement = plan.statements.get(row.address)
    facet = statement.facet if statement is not None else None
    return facet is not None and facet.kind is FacetKind.EVENT


def _is_function(row: OutlineRow) -> bool:
    """Whether a row is a durable function; other steps with calls are done by a model."""
    return function_of(row.facet_name) is not None


def foreign_rows(plan: Plan, outline: Outline, rerun: set[str]) -> list[str]:
    """Return the paths of rows that are not rerun, and that a program would not create so.

    None, unless a retry moves the run to another program.
    """
    return [
        row.path
        for row in outline.rows.values()
        if row.key not in rerun and not _is_of(plan, outline, row)
    ]


def _is_of(plan: Plan, outline: Outline, row: OutlineRow) -> bool:
    above = outline.rows.get(row.parent or "")
    if above is None:
        return row.address in plan.facets
    if row.is_function_call:
        return True  # the code of its function decides, when it is replayed
    if not row.is_block:
        statement = plan.statements.get(row.address)
        if statement is None or statement.target != row.facet_name:
            return False
        is_named = row.object_type in _UNNAMED or row.path.endswith(f".{statement.name}")
        return row.object_type == statement.kind.value and is_named
    block = plan.blocks.get(row.address)
    if block is None or row.object_type not in _types_of(block):
        return False
    if row.object_type == ObjectType.ITEM:
        return row.path == f"{above.path}[{row.position}]"
    around = block.when.segment if block.when is not None else ""
    return row.path == above.path.removesuffix(around) + block.segment


#: Their paths end with a bracket, not with the name of their statement.
_UNNAMED = (ObjectType.MIXIN, ObjectType.SCRIPT)


def _types_of(block: BlockPlan) -> tuple[str, ...]:
    if block.foreach is not None:
        return (ObjectType.FAN, ObjectType.ITEM)
    if block.when is not None:
        return (ObjectType.CASE,)
    return (ObjectType.BLOCK if block.choice is None else ObjectType.WHEN,)


# --- from a step ---


def from_steps(
    plan: Plan, outline: Outline, first: Iterable[OutlineRow], *, only_failed: bool = False
) -> Generation:
    """Rerun rows and every row that depends on them.

    With `only_failed`, a dependent row is rerun only if it did not complete: its step is given
    another end, and a row that has completed in spite of the old one is kept.
    """
    return _Choice(plan, outline, only_failed).of(first)


class _Choice:
    def __init__(self, plan: Plan, outline: Outline, only_failed: bool) -> None:
        self._plan, self._outline, self._only_failed = plan, outline, only_failed
        self._chosen = Generation()
        self._pending: deque[Callable[[], None]] = deque()

    def of(self, first: Iterable[OutlineRow]) -> Generation:
        for row in first:
            self._rerun(row)
        while self._pending:
            self._pending.popleft()()
        return self._chosen

    def _rerun(self, row: OutlineRow) -> None:
        if row.key in self._chosen.rerun:
            return
        self._supersede(row)
        if row.parent is None:  # the root has no row above that could create it again
            self._chosen.rerun.discard(row.key)
            self._chosen.renewed[row.key] = BEGIN
            return
        self._follow(row)
        self._pending.append(lambda: self._renew(self._above(row), row))

    def _supersede(self, row: OutlineRow) -> None:
        """Supersede a row and all rows below it, without successors."""
        for each in (row, *self._outline.below(row.key)):
            self._chosen.rerun.add(each.key)
            self._chosen.renewed.pop(each.key, None)

    def _follow(self, row: OutlineRow) -> None:
        """Choose the rows that depend on the results or the end of a step."""
        for kind, found in self._outline.dependents(self._plan, row):
            if kind is EdgeKind.CAPTURES:
                # Its yields read the step: only they are evaluated again.
                if found.state != StepState.CREATED and not _is_untaken(self._outline, found):
                    self._pending.append(lambda found=found: self._renew(found, None))  # type: ignore[misc]
            elif not self._only_failed or found.has_failed or found.state == StepState.CREATED:
                self._pending.append(lambda found=found: self._rerun(found))  # type: ignore[misc]

    def _renew(self, row: OutlineRow, child: OutlineRow | None) -> None:
        """Let a row go on from the stage of a row below it; later stages are rerun."""
        chosen = self._chosen
        if row.key in chosen.rerun:
            return
        stage = BEGIN if child is None else self._stage(row, child)
        before = chosen.renewed.get(row.key)
        is_call = child is not None and child.is_function_call
        if before is not None and before <= stage and not is_call:
            return
        chosen.renewed[row.key] = stage
        for other in self._outline.children(row.key):
            if _comes_after(self._plan, row, other, stage, child):
                self._supersede(other)
        if before is None and row.parent is not None:
            self._follow(row)
            self._pending.append(lambda: self._renew(self._above(row), row))

    def _stage(self, row: OutlineRow, child: OutlineRow) -> int:
        """Return the stage to go on from, if a row below runs again.

        An always block forgets the error that a catch before it has handled, and an error keeps
        one of two that were handled before it. So if the event of the step failed, it is asked
        again.
        """
        stage = stage_of(self._plan, row, child)
        if not CATCH <= stage < ALWAYS or not is_event(self._plan, row):
            return stage
        children = self._outline.children(row.key)
        stages = {each.key: stage_of(self._plan, row, each) for each in children}
        if BODY in stages.values():
            return stage
        failed = [c for c in children if c.state == StepState.ERROR and stages[c.key] >= stage]
        return BEGIN if ALWAYS in stages.values() or len(failed) > 1 else stage

    def _above(self, row: OutlineRow) -> OutlineRow:
        assert row.parent is not None
        return self._outline.rows[row.parent]


def _comes_after(
    plan: Plan, row: OutlineRow, other: OutlineRow, stage: int, child: OutlineRow | None
) -> bool:
    """Whether a row below a renewed row is created again by it.

    A row that has not begun is: its counter is computed anew.
    """
    if other.is_function_call:
        # A function is replayed up to the call, and makes it and all later ones again.
        if child is not None and child.is_function_call:
            return other.position > child.position
        return stage == BEGIN and not _is_function(row)
    if other.state == StepState.CREATED:
        return True
    if row.is_block:
        return False
    own = stage_of(plan, row, other)
    is_script = child is not None and child.object_type == ObjectType.SCRIPT
    return own > stage or (stage == BEGIN and is_script and other.object_type == ObjectType.MIXIN)


def unfinished(outline: Outline) -> list[OutlineRow]:
    """Return the rows that have not ended, without those around others of them."""
    return [
        row
        for row in outline.rows.values()
        if not row.is_final and all(child.is_final for child in outline.children(row.key))
    ]


# --- all that has failed ---


def failed_rows(
    plan: Plan,
    outline: Outline,
    root: OutlineRow,
    fails_in_always: Callable[[OutlineRow], bool],
    error_path: Callable[[OutlineRow], str],
) -> Generation:
    """Rerun the rows whose failure failed the run, and those skipped because of them.

    A failure that was caught, or collected by its foreach, did not fail the run: it is kept.
    `fails_in_always` tells whether a failed step had completed before its always block,
    `error_path` which row had the error of a failed step first.
    """
    chosen = Generation()
    stages: dict[str, int] = {}
    pending = [root]
    while pending:
        row = pending.pop()
        if _is_function(row) and any(c.is_function_call for c in outline.children(row.key)):
            stages[row.key] = BEGIN
            for call in calls_to_repeat(outline, row, error_path(row)):
                _drop(outline, call, chosen.rerun)
            continue
        stage, causes = _causes(plan, outline, row, fails_in_always)
        stages[row.key] = stage
        pending += causes
        for other in outline.children(row.key):
            if row.is_block:
                continue
            # An event that is asked again has a new conversation with its model.
            is_asked_again = stage == BEGIN and other.is_function_call
            if is_asked_again or stage_of(plan, row, other) > stage:
                _drop(outline, other, chosen.rerun)
    for key, stage in reversed(stages.items()):
        row = outline.rows[key]
        is_past_event = stage > BEGIN and is_event(plan, row)
        is_kept = any(child.key not in chosen.rerun for child in outline.children(key))
        if is_kept or is_past_event or row.parent is None:
            chosen.renewed[key] = stage
        else:
            chosen.rerun.add(key)
    return chosen


def calls_to_repeat(outline: Outline, function: OutlineRow, path: str) -> list[OutlineRow]:
    """Return the calls of a failed function that are made again: from the one that failed it on.

    Calls that were cancelled with the function, not by it, have no end that a replay could tell.
    None: only the code of the function is to blame, and is replayed.
    """
    calls = [child for child in outline.children(function.key) if child.is_function_call]
    first = min(
        (
            call.position
            for call in calls
            if call.path == path or (call.state == StepState.CANCELLED and call.item_count)
        ),
        default=None,
    )
    return [] if first is None else [call for call in calls if call.position >= first]


def _causes(
    plan: Plan,
    outline: Outline,
    row: OutlineRow,
    fails_in_always: Callable[[OutlineRow], bool],
) -> tuple[int, list[OutlineRow]]:
    """Return the stage in which a row failed first, and the rows below that failed then."""
    children = outline.children(row.key)
    failed = [child for child in children if child.has_failed and not _is_untaken(outline, child)]
    if row.is_block:
        return BEGIN, failed
    by_stage: dict[int, list[OutlineRow]] = {}
    for child in failed:
        by_stage.setdefault(stage_of(plan, row, child), []).append(child)
    for stage in (BEGIN, BODY):
        if stage in by_stage:
            return stage, by_stage[stage]
    if ALWAYS in by_stage and fails_in_always(row):
        return ALWAYS, by_stage[ALWAYS]
    has_body = any(stage_of(plan, row, child) == BODY for child in children)
    return (BODY if has_body else BEGIN), []


def _is_untaken(outline: Outline, row: OutlineRow) -> bool:
    is_case = row.object_type == ObjectType.CASE and row.state == StepState.SKIPPED
    return is_case and not outline.children(row.key)


def _drop(outline: Outline, row: OutlineRow, rerun: set[str]) -> None:
    rerun.add(row.key)
    rerun.update(below.key for below in outline.below(row.key))
