"""The working set of one evaluation.

The evaluator never reads a database. It has a snapshot of some rows of the run; when it needs
another, the evaluation stops with its key (`Missing`), the caller loads it and evaluates again
from the start. Nothing was written: rows are copied before they are changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from flowengine.evaluator.call_statements import plan_of_call
from flowengine.evaluator.failures import StepFailed, excerpt, skipped_because
from flowengine.evaluator.outline import Outline, OutlineRow, outlined
from flowengine.evaluator.records import (
    CachedResult,
    FollowUp,
    IterationChanges,
    PayloadRef,
    RunView,
    Step,
    id_within,
    row_key,
)
from flowengine.evaluator.states import ObjectType, Signal, StepState, next_state
from flowengine.program.addresses import RowKind
from flowengine.program.nodes import FacetKind, Json
from flowengine.program.plan import BlockPlan, FacetPlan, Plan, StatementPlan
from flowengine.program.validator import Checks
from flowengine.program.value_size import EvaluationError, checked_size

#: Bytes of computed values that take as long to write as one check of a validation, or as one part
#: of a value that an expression goes through.
_BYTES_PER_CHECK, BYTES_PER_PART = 64, 16
#: Times `max_commit_steps` that a commit may hold, if the last are steps of event facets.
_EVENTS = 2
#: Foreach items that one evaluation begins: a commit stays small however long the list.
PORTION = 100
#: Steps at their event that one evaluation of a cancelled run ends.
PAGE = 500
#: States that a report or the end of a call leaves.
_WITHOUT_QUEUE = frozenset({StepState.EVENT_TRANSMIT, StepState.SUSPENDED})


@dataclass
class Snapshot:
    """The rows and large values of a run that are loaded; None: there is no such row."""

    steps: dict[str, Step | None] = field(default_factory=dict)
    payloads: dict[str, Json] = field(default_factory=dict)
    #: Pages of up to `PAGE` keys of steps at their event, by the key before the first.
    at_event: dict[str, list[str]] = field(default_factory=dict)
    outline: list[OutlineRow] | None = None  #: of the whole run, for a retry
    #: Of steps that a retry renews: the result of their event, by key; None: no task reported it.
    results: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    #: The newest result in the cache, by its key; None: there is none.
    cached: dict[str, CachedResult | None] = field(default_factory=dict)
    #: When the last call of a durable function was recorded, by its key; None: it has made none.
    last_calls: dict[str, int | None] = field(default_factory=dict)


class Missing(Exception):
    """The evaluation needs rows or large values that are not loaded, or the run's outline.

    `pages`: lists of the steps that wait at their event, each by the key before its first.
    `results`: keys of steps, of which the results of their events are missing. `cached`: keys of
    the result cache. `last_calls`: keys of durable functions.
    """

    def __init__(
        self,
        steps: set[str],
        payloads: set[str],
        pages: frozenset[str] = frozenset(),
        *,
        outline: bool = False,
        results: Iterable[str] = (),
        last_calls: Iterable[str] = (),
    ) -> None:
        super().__init__(steps, payloads, pages)
        self.steps, self.payloads, self.pages = steps, payloads, pages
        self.outline, self.results = outline, set(results)
        self.cached: set[str] = set()
        self.last_calls = set(last_calls)

    def __bool__(self) -> bool:
        rows = self.steps or self.payloads or self.pages or self.last_calls
        return bool(rows or self.outline or self.results or self.cached)

    def add(self, more: Missing) -> None:
        self.steps |= more.steps
        self.payloads |= more.payloads
        self.pages |= more.pages
        self.results |= more.results
        self.cached |= more.cached
        self.last_calls |= more.last_calls
        self.outline = self.outline or more.outline


class WorkingSet:
    """The rows in use, the changes so far, and the queue of rows to advance."""

    def __init__(self, plan: Plan, run: RunView, snapshot: Snapshot, now: int) -> None:
        self.plan = plan
        self.limits = plan.limits
        self.run = run
        self.now = now
        self.changes = IterationChanges()
        self.queue: deque[Step] = deque()  #: rows to advance
        self.skipped: deque[Step] = deque()  #: rows whose end is not propagated yet
        self.portion = PORTION
        self._snapshot = snapshot
        self._rows: dict[str, Step] = {}
        self._postponed: set[str] = set()
        self.virtual_items: dict[str, Step] = {}  #: by the key of their step
        self.adopted: set[str] = set()  #: rows of the run that a renewed row takes over
        self.settled: set[str] = set()  #: those of them that had ended before
        self.unread_cached: set[str] = set()  #: keys of the result cache that are not loaded
        self.woken: set[str] = set()  #: suspended functions in the queue

    # --- rows ---

    def find(self, key: str) -> Step | None:
        """Return the row of that key, or None when the run has no such row."""
        row = self._rows.get(key)
        if row is None:
            stored = self.look(key)
            if stored is None:
                return None
            row = self._rows[key] = stored.copied()
        return row

    def look(self, key: str) -> Step | None:
        """Return the row of that key for reading: it is not copied."""
        row = self._rows.get(key)
        if row is not None:
            return row
        try:
            return self._snapshot.steps[key]
        except KeyError:
            raise Missing({key}, set()) from None

    def get(self, key: str) -> Step:
        row = self.find(key)
        assert row is not None, f"run {self.run.id} lacks the row {key}"
        return row

    def want(self, keys: Iterable[str]) -> None:
        """Ask for rows that will be read soon: one round trip to the store instead of many."""
        # Asked key by key: the snapshot of a new run has every key, and no rows.
        missing = {k for k in keys if k not in self._rows and k not in self._snapshot.steps}
        if missing:
            raise Missing(missing, set())

    def at_event(self, after: str) -> list[str]:
        """Return the next keys of steps that wait at their event, `PAGE` of them at most."""
        try:
            return self._snapshot.at_event[after]
        except KeyError:
            raise Missing(set(), set(), frozenset({after})) from None

    @property
    def loaded(self) -> int:
        return len(self._snapshot.steps)

    def knows(self, key: str) -> bool:
        """Whether the row is loaded, or known not to exist."""
        return key in self._rows or key in self._snapshot.steps

    def parent(self, row: Step) -> Step:
        assert row.parent is not None
        return self.get(row.parent)

    def ancestor(self, row: Step, hops: int) -> Step:
        for _ in range(hops):
            row = self.parent(row)
        return row

    def create(
        self,
        kind: RowKind,
        path: str,
        object_type: str,
        address: str,
        parent: Step | None,
        index: int,
    ) -> Step:
        key = row_key(kind, path)
        if self.run.generation and (kept := self.find(key)) is not None:
            return self._adopt(kept)
        row = Step(
            id=id_within(self.run.id, key, self.run.generation),
            run_id=self.run.id,
            key=key,
            path=path,
            object_type=object_type,
            address=address,
            parent=parent.key if parent else None,
            index=index,
            generation=self.run.generation,
            created=self.now,
            updated=self.now,
        )
        self._rows[key] = row
        self.changes.add_created_step(row)
        self.run.step_count += 1
        return row

    def add(self, row: Step) -> None:
        """Add a new row that no other generation can have."""
        self._rows[row.key] = row
        self.changes.add_created_step(row)
        self.run.step_count += 1

    def last_call(self, function: Step) -> int | None:
        """Return when the last call of a durable function was recorded."""
        try:
            return self._snapshot.last_calls[function.key]
        except KeyError:
            raise Missing(set(), set(), last_calls=[function.key]) from None

    # --- generations ---

    def want_kept(self, keys: Iterable[str]) -> None:
        """Want the rows that a renewed row may take over; only a retried run has any."""
        if self.run.generation:
            self.want(keys)

    def has_kept(self, key: str) -> bool:
        return bool(self.run.generation) and self.look(key) is not None

    def _adopt(self, row: Step) -> Step:
        """Take over a row that is kept: its end is counted here too, its task goes on."""
        self.adopted.add(row.key)
        if row.is_final:
            self.settled.add(row.key)
            self.skipped.append(row)
        elif row.state not in _WITHOUT_QUEUE and row.waiting == 0:
            self.queue.append(row)
        return row

    def outline(self) -> Outline:
        """Return all rows of the run, with the changes so far."""
        if self._snapshot.outline is None:
            raise Missing(set(), set(), outline=True)
        gone = self.changes.superseded
        rows = {row.key: row for row in self._snapshot.outline if gone.get(row.key) != row.id}
        for step in (*self.changes.updated_steps, *self.changes.created_steps):
            rows[step.key] = outlined(step)
        return Outline(rows.values())

    def event_results(self, keys: Iterable[str]) -> dict[str, dict[str, Any] | None]:
        """Return the results of the events of these steps, as their last tasks reported them."""
        found = self._snapshot.results
        if lacking := [key for key in keys if key not in found]:
            raise Missing(set(), set(), results=lacking)
        return found

    def cached(self, key: str) -> CachedResult | None:
        """Return the newest result of a key of the result cache.

        If it is not loaded the evaluation goes on without it, and is repeated: so all keys that a
        wide loop asks for are loaded at once.
        """
        if key in self.changes.cached_results:
            return self.changes.cached_results[key]
        if key not in self._snapshot.cached:
            self.unread_cached.add(key)
        return self._snapshot.cached.get(key)

    def supersede(self, rows: Iterable[OutlineRow]) -> None:
        """Remove rows from the run; the run's generation has been raised before."""
        gone = {row.key: row.id for row in rows}
        self.changes.supersede(gone)
        for key in gone:
            self._rows.pop(key, None)
        known = {**self._snapshot.steps, **dict.fromkeys(gone)}
        self._snapshot = replace(self._snapshot, steps=known)

    def renew(self, row: Step) -> None:
        """Add the successor of a superseded row."""
        row.id = id_within(self.run.id, row.key, self.run.generation)
        row.generation, row.created, row.updated = self.run.generation, self.now, self.now
        self._rows[row.key] = row
        self.changes.add_created_step(row)

    def touch(self, row: Step) -> None:
        row.updated = self.now
        self.changes.add_updated_step(row)

    def skip(self, row: Step, cause: Step) -> None:
        """End a row that cannot run, because a step that it needs did not complete."""
        if cause.state == StepState.CANCELLED and cause.error is not None:
            signal, error = Signal.CANCEL, {**cause.error, "path": row.path}
        else:
            signal, error = Signal.SKIP, skipped_because(cause)
        row.error = excerpt(error, self.limits)
        row.state = next_state(row.object_type, row.path, row.state, signal)
        self.touch(row)
        self.skipped.append(row)

    # --- limits ---

    def require(self, count: int, path: str) -> None:
        """Fail the row at that path if the run has no room for `count` more steps."""
        limit = self.limits.max_run_steps
        if self.run.step_count + count > limit:
            message = (
                f"the run would have more than {limit:,} steps, which is the limit (setting "
                "max_run_steps): a recursion must end, a long list can be split over child runs"
            )
            raise StepFailed("TooManySteps", message, path)

    def require_bytes(self, path: str) -> None:
        """Fail the row at that path if the run has written as many bytes of values as it may."""
        limit = self.limits.max_run_bytes
        if self.run.value_bytes > limit:
            message = (
                f"the values of the run take more than {limit:,} bytes, which is the limit "
                "(setting max_run_bytes): pass addresses of data, not the data, or use child runs"
            )
            raise StepFailed("TooManyBytes", message, path)

    def count_checks(self, checks: Checks) -> None:
        """Count a validation as a part of the commit's size: it takes as long as large values."""
        self.changes.computed_bytes += checks.spent * _BYTES_PER_CHECK

    @property
    def is_full(self) -> bool:
        """Whether the commit is as large as it should be."""
        return (
            len(self.changes.created_steps) >= self.limits.max_commit_steps
            or self.changes.computed_bytes >= self.limits.max_commit_bytes
        )

    def postpone(self, row: Step) -> bool:
        """Leave a row of the queue to the next commit; False if it must be advanced now.

        The step of a virtual item is not postponed: only this evaluation has the item's variable.
        A step that only asks for its event creates no further step. To postpone it costs three
        writes, so a block of thousands of them is split later than others.
        """
        if row.key in self.virtual_items or (self._has_room_for_events and self._is_event(row)):
            return False
        if row.key not in self._postponed and not row.is_final:
            self._postponed.add(row.key)
            self.changes.follow_ups.append(FollowUp("Expand", {"step_key": row.key}))
        return True

    @property
    def _has_room_for_events(self) -> bool:
        return (
            len(self.changes.created_steps) < self.limits.max_commit_steps * _EVENTS
            and self.changes.computed_bytes < self.limits.max_commit_bytes
        )

    def _is_event(self, row: Step) -> bool:
        if row.object_type in ObjectType.BLOCKS:
            return False
        plan, facet = self.step_plan(row), self.facet(row)
        return facet is not None and facet.kind is FacetKind.EVENT and not plan.body

    def account(self, value: Any, path: str) -> None:
        """Count a computed value, or fail the step at that path if it is too large."""
        try:
            self.changes.computed_bytes += checked_size(value, self.limits)
        except EvaluationError as error:
            raise StepFailed(error.kind, str(error), path) from None

    # --- values ---

    def read(self, value: Any) -> Json:
        """Return a value; a large one is loaded."""
        if not isinstance(value, PayloadRef):
            return value
        if value.hash not in self._snapshot.payloads:
            raise Missing(set(), {value.hash})
        return self._snapshot.payloads[value.hash]

    # --- the program ---

    @property
    def root_plan(self) -> FacetPlan:
        return self.plan.facets[self.run.workflow]

    @property
    def root_key(self) -> str:
        return row_key(RowKind.STEP, self.root_plan.short_name)

    def plan_of(self, row: Step) -> FacetPlan | StatementPlan | BlockPlan:
        if row.object_type in ObjectType.BLOCKS:
            return self.plan.blocks[row.address]
        return self.step_plan(row)

    def step_plan(self, row: Step) -> FacetPlan | StatementPlan:
        if row.object_type == ObjectType.WORKFLOW:
            return self.plan.facets[row.address]
        return self.statement(row)

    def facet(self, row: Step) -> FacetPlan | None:
        if row.object_type == ObjectType.WORKFLOW:
            return self.plan.facets[row.address]
        return self.statement(row).facet

    def statement(self, row: Step) -> StatementPlan:
        if row.object_type == ObjectType.FUNCTION_CALL:
            return plan_of_call(row.address)
        return self.plan.statements[row.address]

    def block(self, row: Step) -> BlockPlan:
        return self.plan.blocks[row.address]
