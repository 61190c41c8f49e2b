"""Triggers: the events that make the evaluator decide something about a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from flowengine.evaluator.records import Error, TaskDefinition, row_key
from flowengine.program.addresses import RowKind
from flowengine.program.function_calls import FunctionCall
from flowengine.program.nodes import Json
from flowengine.step_logs.chunks import LogChunk


@dataclass(slots=True)  # not frozen: two are made for each call of a durable function
class Succeeded:
    """A try ended with a result."""

    result: dict[str, Json]
    #: Whether it fits the types of its facet and the limits: a result is checked once.
    is_checked: bool = field(default=False, compare=False, repr=False)
    #: Whether the code of the facet returned it, so that its annotation has validated it. A result
    #: from outside is validated by the types and schemas of the program.
    is_from_code: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """A try ended with an error."""

    error: Error
    retry: bool = True  #: False: another try would fail with the same error


@dataclass(frozen=True, slots=True)
class Lost:
    """A try ended with the death of its worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delegated:
    """A try ended by starting a child run; the step waits for the end of that run.

    It is recorded on the task and never reaches the evaluator: the step's state stays the same.
    """

    run_id: str


@dataclass(frozen=True, slots=True)
class ActivationEnded:
    """An activation of a durable function ended: everything in it waits, or it has ended.

    It says what the function wants; calls that the activation has made and recorded itself are not
    part of it.
    """

    calls: tuple[FunctionCall, ...] = ()  #: new ones, in the order of their numbers
    heard: tuple[int, ...] = ()  #: calls whose ends were heard since the last call, in order
    #: Open calls that the function does not wait for any more.
    cancelled: tuple[int, ...] = ()
    ended: Succeeded | Failed | None = None  #: the end of the function
    seen: int = 0  #: the number of ends that it was told of, as the function's row counts them
    failed: Failed | None = None  #: how the first of `calls` failed: it was tried in place
    is_partial: bool = False  #: the function has made further calls, which the next one reports
    in_place: int = 0  #: calls that it has recorded itself


Outcome: TypeAlias = Succeeded | Failed | Lost | Delegated | ActivationEnded


@dataclass(frozen=True, slots=True)
class Report:
    """How the try of a task ended.

    The same value goes from the worker through spool, engine and store to the evaluator.
    """

    task: TaskDefinition
    outcome: Outcome
    #: The last lines of the try, which are stored with the report. The evaluator does not see them.
    log: tuple[LogChunk, ...] = field(default=(), compare=False, repr=False)

    @property
    def step_key(self) -> str:
        return self.task.step_key


@dataclass(frozen=True, slots=True)
class StepContinue:
    """A step is completed from outside, past its tasks."""

    step_id: str
    step_key: str
    result: dict[str, Json]


@dataclass(frozen=True, slots=True)
class StepFail:
    """A step is failed from outside, past its tasks."""

    step_id: str
    step_key: str
    error: Error


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The timer of a step is due."""

    step_id: str
    step_key: str
    kind: str = ""


def mailbox_key(name: str) -> str:
    """Return the key of the row that holds the answer of that name, or the step that waits."""
    return row_key(RowKind.MAILBOX, name)


@dataclass(frozen=True, slots=True)
class Answer:
    """Somebody has answered a question of the run by its name."""

    id: str
    name: str
    value: Json
    actor: str
    at: int  #: milliseconds since the epoch
    wait: int | None = None  #: the number of the wait that it is for; None: the present one

    @property
    def step_key(self) -> str:
        return mailbox_key(self.name)


@dataclass(frozen=True, slots=True)
class Action:
    """Somebody changes the course of the run: cancels it, retries a step, and so on."""

    id: str
    kind: str  #: an `ActionKind`
    actor: str
    reason: str
    at: int  #: milliseconds since the epoch
    step_key: str = ""  #: empty: the action concerns the whole run
    options: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CancelSteps:
    """A cancelled run has more open steps than one commit should end."""

    after: str  #: the key of the last step before them
    step_key = ""


@dataclass(frozen=True, slots=True)
class CancelChildren:
    """Child runs are to be cancelled: all of a cancelled run, or those of some of its steps."""

    after: str  #: the id of the last child run before them
    below: str = ""  #: only those of the step with this path, and of steps below it
    superseded: bool = False  #: only those of steps that a retry has superseded
    actor: str = ""  #: this and the next: who cancels those of steps, why, and when
    reason: str = ""
    at: int = 0
    step_key = ""

    @property
    def is_of_steps(self) -> bool:
        return bool(self.below) or self.superseded


@dataclass(frozen=True, slots=True)
class Expand:
    """A foreach has more items than one commit should hold."""

    step_key: str


@dataclass(frozen=True, slots=True)
class Started:
    """The run was started with these inputs."""

    inputs: dict[str, Json]


@dataclass(frozen=True, slots=True)
class RanAhead:
    """The activation that the ends of the same evaluation open has been run already.

    The worker that reports the end of a call has the coroutine of its function. An activation has
    no effects of its own, so it is run first, and committed with the end or not at all.
    """

    step_id: str
    step_key: str
    number: int  #: of the activation
    report: ActivationEnded


Trigger: TypeAlias = (
    Started
    | Report
    | StepContinue
    | StepFail
    | TimerFired
    | Answer
    | Action
    | CancelSteps
    | CancelChildren
    | Expand
    | RanAhead
)
