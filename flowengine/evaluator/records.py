"""The records the evaluator reads and writes.

A record is plain data, independent of the rows of a store: setting a field has no effect
elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from flowengine.evaluator.states import ObjectType, RunState, StepState, TaskState
from flowengine.program.addresses import RowKind
from flowengine.program.nodes import Json

ACTIVATION = "activation"  #: the type of a task that is an activation of a durable function
RUN_CALL = "run"  #: of a task that starts the run which a durable function awaits
CLAIMS = 100_000  #: of one try, that `TaskDefinition.attempt` tells apart
Error = dict[str, Any]  #: type, message, path, bases, …: of a failed step


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """A large value that is stored once, by its hash, and loaded only when it is read."""

    hash: str


@functools.lru_cache(maxsize=10_000)  # the keys around a step are computed again and again
def row_key(kind: RowKind, path: str) -> str:
    """Return the key of a row in its run. A digest: long paths exceed the limits of indexes."""
    return blake2b((kind + path).encode(), digest_size=16).hexdigest()


def derived_id(*parts: object) -> str:
    """Return a deterministic id: the same decision made twice gives the same id."""
    return blake2b(":".join(map(str, parts)).encode(), digest_size=16).hexdigest()


ID_PREFIX = 12  #: digits that the ids of a run's rows share with it


def id_within(owner: str, *parts: object) -> str:
    """Return a deterministic id that begins like the id of its owner.

    So the rows of a run are adjacent in an index. Scattered, each new row would touch an index
    page of its own, and a database writes a page whole when it is touched first.
    """
    text = f"{owner}:{':'.join(map(str, parts))}"
    return owner[:ID_PREFIX] + blake2b(text.encode(), digest_size=10).hexdigest()


@dataclass(slots=True)
class Step:
    """One call inside a run, or one block of a body."""

    id: str
    run_id: str
    key: str
    path: str
    object_type: str
    address: str  #: place in the program; the facet's name for the root
    parent: str | None  #: key of the parent row
    index: int  #: position among its siblings, in program or item order
    generation: int = 0
    facet_name: str = ""
    state: str = StepState.CREATED
    params: dict[str, Any] = field(default_factory=dict)
    returns: dict[str, Any] = field(default_factory=dict)
    error: Error | None = None
    waiting: int = 0  #: steps that must end before this row can begin
    #: Children that have not ended, without those that the end of another will create.
    remaining: int = 0
    #: Of a foreach block: its items. Of the root step: the calls of recursive facets so far. Of a
    #: durable function: the ends of calls so far; of such a call: its place among these ends.
    item_count: int = 0
    #: Of a foreach block: the next item to begin. Of a step: its catches begun so far.
    next_index: int = 0
    failure: Mapping[str, Any] | None = None  #: the first failed child in program order
    yields: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    created: int = 0
    updated: int = 0
    digest: str | None = None  #: of the arguments of a call of a durable function
    #: Of such a call: the calls whose ends the function heard since the one before, in order. Of
    #: the function: those since its last call.
    heard: tuple[int, ...] = ()
    activation: int = 0  #: of a durable function: the number of its last activation

    def copied(self) -> Step:
        """Return a copy; ten times as fast as `copy.copy`."""
        return Step(*_FIELDS(self))

    @property
    def is_final(self) -> bool:
        return self.state in StepState.FINAL

    @property
    def has_failed(self) -> bool:
        return self.state in StepState.UNSUCCESSFUL

    @property
    def is_virtual(self) -> bool:
        """Whether it is an item without a stored row: its only step takes its place."""
        return not self.id

    @property
    def is_limited(self) -> bool:
        """Whether it is a foreach with a limit of items in progress."""
        return self.object_type == ObjectType.FAN and "limit" in self.params

    @property
    def is_held_back(self) -> bool:
        """Whether it is a foreach in which the end of an item begins another."""
        return self.is_limited and self.next_index < self.item_count


_FIELDS = operator.attrgetter(*(field.name for field in dataclasses.fields(Step)))


@dataclass(slots=True)
class EventDefinition:
    """The outside work that a step asks for."""

    id: str
    step_id: str
    workflow_id: str
    state: str
    event_type: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TaskDefinition:
    """One try of that work."""

    uuid: str
    name: str  #: qualified facet name
    runner_id: str  #: the server that claimed it
    workflow_id: str  #: the run
    flow_id: str  #: the program's hash
    step_id: str
    state: str = TaskState.PENDING
    created: int = 0  #: milliseconds since the epoch, like all times here
    updated: int = 0
    error: dict[str, Any] | None = None
    task_list_name: str = "default"
    data_type: str = ""  #: `ACTIVATION` and `RUN_CALL`, or nothing
    data: dict[str, Any] | None = None  #: the step's parameters
    step_key: str = ""
    step_path: str = ""
    try_number: int = 1  #: counted against the retry policy
    losses: int = 0  #: tries before this one that ended with the death of their worker
    lease: int = 0  #: raised at every claim; a report must name it
    due: int = 0
    rank: int = 0  #: the lowest is claimed first: due time and priority of its run
    position: int = 0  #: order of creation inside the run
    timeout_ms: int | None = None
    boot_id: str = ""  #: the boot of the server that claimed it
    pid: int | None = None  #: the process that did
    runs_once: bool = False  #: a try that has begun must not be followed by another
    circuit: str = ""  #: the circuit breaker that lets its try through; empty: none
    #: The row that only counts this task down, with others: it enables nothing alone.
    join: str = ""
    join_id: str | None = None  #: the group it is counted with, when it was opened with others
    tenant: str = ""  #: of the run: a claim takes the tasks of one tenant
    limits: str | None = None  #: its keys, as `admission.write_keys` writes them
    queue: str | None = None  #: in which it waits for its keys

    @property
    def attempt(self) -> int:
        """A number that grows with every claim of the tasks of a step."""
        return (self.try_number + self.losses) * CLAIMS + min(self.lease, CLAIMS - 1)


@dataclass(frozen=True, slots=True)
class TimerDefinition:
    """The time at which a step stops waiting."""

    id: str
    run_id: str
    step_id: str
    kind: str
    due: int  #: milliseconds since the epoch


@dataclass(frozen=True, slots=True)
class Waiter:
    """The parent step, in another run, that waits for the end of this run."""

    run_id: str
    step_id: str
    step_key: str


@dataclass(slots=True)
class RunView:
    """The fields of a run that the evaluator reads and decides."""

    id: str
    workflow: str
    program_hash: str
    generation: int = 0
    state: str = RunState.RUNNING
    priority: int = 0
    open_steps: int = 0  #: steps that wait at their event
    #: Steps, blocks and repeated tries so far, with the items of loops that have begun.
    step_count: int = 0
    value_bytes: int = 0  #: of the values that its commits have written so far
    tenant: str = ""
    deadline: int | None = None  #: by which it must end, in milliseconds since the epoch
    outputs: dict[str, Any] | None = None
    error: Error | None = None
    alarm: str | None = None
    waiter: Waiter | None = None
    agent_call: str | None = None  #: of an agent that waits for the end of this run
    created: int = 0  #: when it was started; 0 of a child run
    singleton: str | None = None  #: the key that no other open run of the workflow has

    def copied(self) -> RunView:
        return RunView(*_RUN_FIELDS(self))


_RUN_FIELDS = operator.attrgetter(*(field.name for field in dataclasses.fields(RunView)))


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Work that the evaluator leaves for the next evaluation: a fact of the run."""

    kind: str
    payload: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer from outside that was refused: nothing of it is stored."""

    answer_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DroppedAnswer:
    """An answer that was kept for a step, and did not fit when the step began."""

    answer_id: str
    name: str
    actor: str
    at: int  #: when it was given
    path: str  #: of the step, which waits for another one
    reason: str


class TaskHold(StrEnum):
    """A change of the unclaimed tasks of a run."""

    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class ChildCancellation:
    """The cancellation that the child runs of a run, or of some of its steps, get."""

    after: str  #: child runs with later ids
    actor: str
    reason: str
    at: int
    spares_always: bool  #: whether those that always blocks have started go on
    below: str = ""  #: only those of the step with this path, and of steps below it
    superseded: bool = False  #: only those of superseded steps


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A result of an event facet that later steps with the same key complete with."""

    id: str
    key: str  #: a digest of the tenant, the facet, the types of its results, and its cache's key
    tenant: str
    facet: str
    run_id: str  #: the run and the step that had it
    path: str
    returns: dict[str, Any]
    created: int
    expires: int


@dataclass(frozen=True, slots=True)
class ReusedResult:
    """A step that completed its event with a cached result."""

    event_id: str
    step_id: str
    step_key: str
    path: str
    source: CachedResult


class IterationChanges:
    """The decisions of one evaluation. They are committed together, or not at all."""

    # Not a dataclass: its default factories take three times as long, and each step has changes.
    def __init__(self) -> None:
        self.created_steps: list[Step] = []
        self.updated_steps: list[Step] = []
        self.created_events: list[EventDefinition] = []
        self.created_tasks: list[TaskDefinition] = []
        self.created_timers: list[TimerDefinition] = []
        #: Intents: unfired timers of these steps are to be removed.
        self.ended_waits: list[str] = []
        self.ended_timers: list[str] = []  #: intents, like `ended_waits`, by id
        self.refusals: list[Refusal] = []  #: of answers that no step takes
        self.dropped_answers: list[DroppedAnswer] = []
        #: Intents: tasks of these steps that are still open are to be stopped and fenced.
        self.canceled_steps: list[str] = []
        self.answered_steps: list[str] = []  #: those of them that got a result
        self.task_hold: TaskHold | None = None  #: intent about all unclaimed tasks of the run
        self.child_cancellations: list[ChildCancellation] = []  #: intents
        self.superseded: dict[str, str] = {}  #: key and id of replaced rows
        self.ran_ahead: list[str] = []  #: keys of functions whose activation was run ahead
        self.follow_ups: list[FollowUp] = []
        self.cached_results: dict[str, CachedResult] = {}  #: new ones, by key
        self.reused_results: list[ReusedResult] = []
        self.computed_bytes = 0  #: of values that expressions made
        self._created_ids: set[str] = set()
        self._updated_ids: dict[str, int] = {}

    def add_created_step(self, step: Step) -> None:
        if step.id not in self._created_ids:
            self._created_ids.add(step.id)
            self.created_steps.append(step)

    def add_updated_step(self, step: Step) -> None:
        """Record a changed step; a later change of the same step replaces the earlier one."""
        if step.id in self._created_ids:
            return  # the created row is written in its last state
        if step.id in self._updated_ids:
            self.updated_steps[self._updated_ids[step.id]] = step
        else:
            self._updated_ids[step.id] = len(self.updated_steps)
            self.updated_steps.append(step)

    def remove_timer(self, timer_id: str) -> None:
        """End a timer; one that this evaluation has created is never written."""
        kept = [timer for timer in self.created_timers if timer.id != timer_id]
        if len(kept) == len(self.created_timers):
            self.ended_timers.append(timer_id)
        self.created_timers = kept

    def supersede(self, gone: dict[str, str]) -> None:
        """Record rows that are replaced, by key; their changes so far are dropped."""
        ids = set(gone.values())
        unwritten = ids & self._created_ids
        self.created_steps = [step for step in self.created_steps if step.id not in unwritten]
        self.updated_steps = [step for step in self.updated_steps if step.id not in ids]
        self._updated_ids = {step.id: at for at, step in enumerate(self.updated_steps)}
        self.superseded |= {key: row_id for key, row_id in gone.items() if row_id not in unwritten}

    def add_created_event(self, event: EventDefinition) -> None:
        self.created_events.append(event)

    def add_created_task(self, task: TaskDefinition) -> None:
        self.created_tasks.append(task)

    @property
    def is_empty(self) -> bool:
        return not (
            self.created_steps
            or self.updated_steps
            or self.created_events
            or self.created_tasks
            or self.canceled_steps
            or self.task_hold
            or self.child_cancellations
            or self.follow_ups
            or self.refusals
            or self.superseded
        )
