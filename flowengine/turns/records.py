"""The rows of agents as values: heads, turns, calls, cards, and the changes of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from flowengine.program.nodes import Json
from flowengine.turns.states import AfterExecution, HeadState, TaskStatus, TurnState, WaitState


class CardType:
    """The type of a card."""

    INSTRUCTION = "task.instruction"
    RESULT_FIELDS = "task.result_fields"
    DELIVERABLE = "task.deliverable"
    THOUGHT = "agent.thought"
    ERROR = "agent.error"
    TOOL_CALL = "tool.call"
    TOOL_RESULT = "tool.result"
    PROFILE = "sys.profile"
    REMINDER = "sys.must_end_with_required"
    PARENT = "meta.parent_pointer"


@dataclass(slots=True)
class Head:
    """The state of an agent. `epoch` and `turn_id` guard every update of it (fencing)."""

    project: str
    agent: str
    status: str = HeadState.IDLE
    turn_id: str | None = None
    epoch: int = 0  #: never falls
    depth: int = 0  #: of the active turn: the turns above it
    trace_id: str = ""
    parent_step_id: str = ""
    profile_box_id: str | None = None
    context_box_id: str | None = None
    output_box_id: str | None = None
    waiting: int = 0  #: calls whose reports are missing
    resume_deadline: int | None = None  #: the earliest deadline of those calls
    run_id: str | None = None  #: of the model call
    entered: int = 0  #: the try of that run which has entered last; 0: none
    memory_box_id: str | None = None  #: the output box of the turns before
    events: int = 0  #: numbered so far

    def copied(self) -> Head:
        return Head(*_values_of_head(self))


@dataclass(slots=True)
class Turn:
    """One message to an agent, and the one delivery for it."""

    id: str
    project: str
    agent: str
    state: str = TurnState.QUEUED
    facet: str = ""  #: the qualified name of the agent's definition
    profile_id: str = ""  #: the card with the profile that it was enqueued with
    context_box_id: str = ""
    output_box_id: str = ""
    base_index: int = 0  #: cards of the output box that belong to earlier turns
    depth: int = 0
    trace_id: str = ""
    priority: int = 0
    steps: int = 0  #: model calls so far
    tokens: int = 0
    deadline: int | None = None  #: at which its budget of seconds is spent
    parent_turn_id: str | None = None
    waiting_run_id: str | None = None  #: the run whose step waits for its end
    waiting_step_id: str | None = None
    waiting_step_key: str | None = None
    enqueued: int = 0

    def copied(self) -> Turn:
        return Turn(*_values_of_turn(self))


# `dataclasses.replace` takes four times as long, and every decision copies both.
_values_of_head = attrgetter(*Head.__slots__)
_values_of_turn = attrgetter(*Turn.__slots__)


@dataclass(slots=True)
class Call:
    """A call of a tool that a turn waits for."""

    id: str
    step_id: str
    name: str  #: of the tool, as the model knows it
    model_call_id: str
    state: str = WaitState.WAITING
    run_id: str | None = None
    approval: str = ""  #: "asked" while a person has to decide, then "approved" or "rejected"
    after_execution: str = AfterExecution.SUSPEND
    deadline: int | None = None
    ending: str | None = None  #: how it ended: a TaskStatus
    position: int = 0  #: among the calls of its answer
    effective: str = AfterExecution.SUSPEND  #: after its result was read
    result: Json = None  #: of one that ends the turn: the turn delivers it


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of a turn, from its profile."""

    max_steps: int = 8
    max_tokens: int | None = None
    must_submit: bool = False  #: it has result fields: a text alone does not end it
    tool_timeout: int = 300_000  #: milliseconds


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call that the model asked for, after its name and arguments were checked."""

    name: str
    model_call_id: str
    arguments: Json
    problem: str = ""  #: why it is refused; the model reads it
    is_submit: bool = False  #: of `submit_result`
    after_execution: str = AfterExecution.SUSPEND
    timeout: int | None = None  #: milliseconds; None: that of the rules
    needs_approval: bool = False
    fields: tuple[tuple[str, Json], ...] = ()  #: of submit_result
    is_made_in_place: bool = False  #: by the try of the model call
    result: Json = None  #: of a call that was made in place


# --- triggers ---


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """The model has answered."""

    run_id: str
    text: str
    content: Json  #: the whole answer, as the thought card keeps it
    calls: tuple[AskedCall, ...] = ()
    tokens: int = 0
    problem: str = ""  #: a code, if the answer is cut off or declined
    goes_on: bool = False  #: the provider wants its answer back to go on
    number: int | None = None  #: of the model call in its turn; None: the present one
    is_followed_in_place: bool = False  #: its try makes the next model call, if one follows


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The model call has ended without an answer."""

    run_id: str
    code: str
    message: str
    status: str = TaskStatus.FAILED


@dataclass(frozen=True, slots=True)
class Reported:
    """A call has ended, or its deadline has passed."""

    call_id: str
    status: str
    result: Json = None
    error: Mapping[str, Json] | None = None
    after_execution: str = ""  #: overrides that of the call if valid
    is_timeout: bool = False
    is_early: bool = False  #: given from outside: the call's own run may go on


@dataclass(frozen=True, slots=True)
class Stopped:
    """The turn is to end now."""

    code: str
    reason: str
    status: str = TaskStatus.CANCELED
    by: str = ""


Trigger = ModelAnswered | ModelFailed | Reported | Stopped


# --- changes ---


@dataclass(frozen=True, slots=True)
class NewCard:
    """A card that is appended to the turn's output box."""

    id: str
    type: str
    content: Json
    step_id: str = ""
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class StartedCall:
    """A call to be started: its waiting row, and a run or a child turn unless a person decides."""

    call: Call
    asked: AskedCall


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call to be started as a run of one step, or made by the run of the one before."""

    run_id: str
    step_id: str
    number: int  #: of the step in its turn, from 1
    is_in_place: bool = False  #: the try of the call before makes it: `run_id` is that of its run


@dataclass(frozen=True, slots=True)
class EndedStep:
    step_id: str
    status: str  #: completed, suspended or failed
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event of the agent, numbered when it is written."""

    kind: str  #: state, step or task
    body: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The end of a turn."""

    status: str
    card_id: str
    code: str = ""
    message: str = ""


@dataclass(slots=True)
class Changes:
    """The rows that a decision changes. Nothing of it is written if the guard refuses."""

    head: Head
    before: tuple[int, str | None]  #: the epoch and the turn that guard the update
    cards: list[NewCard] = field(default_factory=list)
    started: list[StartedCall] = field(default_factory=list)
    made_in_place: list[Call] = field(default_factory=list)  #: they have ended already
    ended: list[Call] = field(default_factory=list)
    model_call: ModelCall | None = None
    steps: list[EndedStep] = field(default_factory=list)
    canceled: list[Call] = field(default_factory=list)  #: open calls that are told to end
    canceled_run: str | None = None  #: the model call that is told to end
    delivery: Delivery | None = None
    events: list[NewEvent] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  #: of the suspension, as they are afterwards
