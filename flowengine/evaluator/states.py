"""The state machines, as tables.

Every state has an entry, the final ones too: an empty entry says that the state is final.
`next_state` is the only transition function, so that a transition without an entry cannot be
made.

A step passes through several states in one evaluation. It is stored in the state in which it
waits: before it begins, at its event, for its body; or in a final state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import pairwise

from flowengine.errors import IllegalTransition


class StepState:
    CREATED = "state.statement.Created"
    FACET_INIT_BEGIN = "state.facet.initialization.Begin"
    FACET_INIT_END = "state.facet.initialization.End"
    FACET_SCRIPTS_BEGIN = "state.facet.scripts.Begin"
    FACET_SCRIPTS_END = "state.facet.scripts.End"
    MIXIN_BLOCKS_BEGIN = "state.mixin.blocks.Begin"
    MIXIN_BLOCKS_CONTINUE = "state.mixin.blocks.Continue"
    MIXIN_BLOCKS_END = "state.mixin.blocks.End"
    MIXIN_CAPTURE_BEGIN = "state.mixin.capture.Begin"
    MIXIN_CAPTURE_END = "state.mixin.capture.End"
    EVENT_TRANSMIT = "state.EventTransmit"
    #: A durable function between two activations: it waits for its calls, and has no task.
    SUSPENDED = "state.function.Suspended"
    BLOCKS_BEGIN = "state.statement.blocks.Begin"
    BLOCKS_CONTINUE = "state.statement.blocks.Continue"
    BLOCKS_END = "state.statement.blocks.End"
    CAPTURE_BEGIN = "state.statement.capture.Begin"
    CAPTURE_END = "state.statement.capture.End"
    CATCH_BEGIN = "state.catch.Begin"
    CATCH_CONTINUE = "state.catch.Continue"
    CATCH_END = "state.catch.End"
    ALWAYS_BEGIN = "state.always.Begin"
    ALWAYS_CONTINUE = "state.always.Continue"
    ALWAYS_END = "state.always.End"
    EXECUTION_BEGIN = "state.block.execution.Begin"
    EXECUTION_CONTINUE = "state.block.execution.Continue"
    EXECUTION_END = "state.block.execution.End"
    END = "state.statement.End"
    COMPLETE = "state.statement.Complete"
    ERROR = "state.statement.Error"
    SKIPPED = "state.statement.Skipped"
    CANCELLED = "state.statement.Cancelled"

    FINAL = frozenset({COMPLETE, ERROR, SKIPPED, CANCELLED})
    UNSUCCESSFUL = frozenset({ERROR, SKIPPED, CANCELLED})
    CLOSING = frozenset({ALWAYS_BEGIN, ALWAYS_CONTINUE, ALWAYS_END})
    #: While a step is here, its error can be read.
    HANDLING = frozenset({CATCH_BEGIN, CATCH_CONTINUE, CATCH_END}) | CLOSING


class MailboxState:
    WAITING = "mailbox.Waiting"  #: a step waits for the answer
    KEPT = "mailbox.Kept"  #: an early answer is kept for its step
    CLOSED = "mailbox.Closed"  #: the answer has met its step


class EventState:
    CREATED = "event.Created"
    DISPATCHED = "event.Dispatched"
    PROCESSING = "event.Processing"
    COMPLETED = "event.Completed"
    ERROR = "event.Error"

    @classmethod
    def is_terminal(cls, state: str) -> bool:
        return state in (cls.COMPLETED, cls.ERROR)


class TaskState:
    """The state of a task: one try of an event."""

    WAITING = "waiting"  #: not claimable: one of its limits or rates has no free slot
    PENDING = "pending"
    HELD = "held"  #: not claimable: its run is held
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    IGNORED = "ignored"
    CANCELED = "canceled"

    OPEN = frozenset({WAITING, PENDING, HELD, RUNNING})
    ADMITTED = frozenset({PENDING, RUNNING})  #: if it has keys, it takes a slot of each
    FINAL = frozenset({COMPLETED, FAILED, IGNORED, CANCELED})


class RunState:
    QUEUED = "QUEUED"  #: waits for the end of another run with the same singleton key
    RUNNING = "RUNNING"
    HELD = "HELD"  #: nothing new is claimed; running tasks may end
    CANCELLING = "CANCELLING"  #: only always blocks still run
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    OPEN = (QUEUED, RUNNING, HELD, CANCELLING)
    FINAL = frozenset({COMPLETED, FAILED, CANCELLED})
    ALL = (*OPEN, COMPLETED, FAILED, CANCELLED)  #: in the order in which readers list them


class Signal(StrEnum):
    """The input of a state machine."""

    ADVANCE = "advance"
    CONTINUE = "continue"  #: the event completed
    SUSPEND = "suspend"  #: the activation of a durable function ended, and the function did not
    FAIL = "fail"
    SKIP = "skip"
    CATCH = "catch"  #: it failed, and has another catch
    SCRIPT = "script"  #: it has a script, which runs first
    MIX = "mix"  #: it has mixins, which run before its event and body
    CLOSE = "close"  #: it ended, but has an always block
    CANCEL = "cancel"
    HOLD = "hold"  #: of a run
    RELEASE = "release"  #: of a run
    WAIT = "wait"  #: of a mailbox: a step begins to wait
    ANSWER = "answer"  #: of a mailbox: an answer from outside


Table = Mapping[str, Mapping[Signal, str]]

_S = StepState


def _in_order(*states: str) -> dict[str, dict[Signal, str]]:
    """A machine that goes from each state to the next, and from anywhere to a final state."""
    table: dict[str, dict[Signal, str]] = {
        state: {
            Signal.ADVANCE: following,
            Signal.FAIL: _S.ERROR,
            Signal.SKIP: _S.SKIPPED,
            Signal.CANCEL: _S.CANCELLED,
        }
        for state, following in pairwise(states)
    }
    return table | {state: {} for state in _S.FINAL}


_STEP_IN_ORDER = _in_order(
    _S.CREATED,
    _S.FACET_INIT_BEGIN,
    _S.FACET_INIT_END,
    _S.FACET_SCRIPTS_BEGIN,
    _S.FACET_SCRIPTS_END,
    _S.MIXIN_BLOCKS_BEGIN,
    _S.MIXIN_BLOCKS_CONTINUE,
    _S.MIXIN_BLOCKS_END,
    _S.MIXIN_CAPTURE_BEGIN,
    _S.MIXIN_CAPTURE_END,
    _S.EVENT_TRANSMIT,
    _S.BLOCKS_BEGIN,
    _S.BLOCKS_CONTINUE,
    _S.BLOCKS_END,
    _S.CAPTURE_BEGIN,
    _S.CAPTURE_END,
    _S.END,
    _S.COMPLETE,
)
_CATCH_IN_ORDER = _in_order(
    _S.CATCH_BEGIN, _S.CATCH_CONTINUE, _S.CATCH_END, _S.CAPTURE_BEGIN, _S.COMPLETE
)
_ALWAYS_IN_ORDER = _in_order(
    _S.ALWAYS_BEGIN, _S.ALWAYS_CONTINUE, _S.ALWAYS_END, _S.END, _S.COMPLETE
)
_TO_HANDLERS = {Signal.CATCH: _S.CATCH_BEGIN, Signal.CLOSE: _S.ALWAYS_BEGIN}

#: A step, the root of a run too. Only a step with a script or mixins enters their states, only a
#: failed step enters those of a catch, and only a step with an always block those of always.
STEP_TRANSITIONS: Table = {
    **_ALWAYS_IN_ORDER,
    **{
        state: onward if state in _S.FINAL else {**onward, **_TO_HANDLERS}
        for state, onward in (_CATCH_IN_ORDER | _STEP_IN_ORDER).items()
    },
}
STEP_TRANSITIONS = {
    **STEP_TRANSITIONS,
    _S.FACET_INIT_BEGIN: {
        **STEP_TRANSITIONS[_S.FACET_INIT_BEGIN],
        Signal.SCRIPT: _S.FACET_SCRIPTS_BEGIN,
        Signal.MIX: _S.MIXIN_BLOCKS_BEGIN,
    },
    _S.FACET_INIT_END: {**STEP_TRANSITIONS[_S.FACET_INIT_END], Signal.ADVANCE: _S.EVENT_TRANSMIT},
    _S.FACET_SCRIPTS_END: {
        **STEP_TRANSITIONS[_S.FACET_SCRIPTS_END],
        Signal.ADVANCE: _S.EVENT_TRANSMIT,
        Signal.MIX: _S.MIXIN_BLOCKS_BEGIN,
    },
    _S.EVENT_TRANSMIT: {
        **STEP_TRANSITIONS[_S.EVENT_TRANSMIT],
        Signal.CONTINUE: _S.BLOCKS_BEGIN,
        Signal.SUSPEND: _S.SUSPENDED,
    },
    # As at its event, but it goes on with the next activation.
    _S.SUSPENDED: {
        **STEP_TRANSITIONS[_S.EVENT_TRANSMIT],
        Signal.ADVANCE: _S.EVENT_TRANSMIT,
    },
}

#: A block, a foreach block and one item of it, a when block and one case of it.
BLOCK_TRANSITIONS: Table = _in_order(
    _S.CREATED, _S.EXECUTION_BEGIN, _S.EXECUTION_CONTINUE, _S.EXECUTION_END, _S.END, _S.COMPLETE
)

#: A call of a durable function. One that was made in place is inserted in its final state.
CALL_TRANSITIONS: Table = _in_order(_S.CREATED, _S.EVENT_TRANSMIT, _S.END, _S.COMPLETE)
CALL_TRANSITIONS = {
    **CALL_TRANSITIONS,
    _S.EVENT_TRANSMIT: {**CALL_TRANSITIONS[_S.EVENT_TRANSMIT], Signal.CONTINUE: _S.END},
}

#: sys.log and sys.assert.
SYS_TRANSITIONS: Table = _in_order(_S.CREATED, _S.FACET_INIT_BEGIN, _S.END, _S.COMPLETE)


#: A mailbox. An answer without an entry is refused. Steps may wait at it one after the other.
MAILBOX_TRANSITIONS: Table = {
    _S.CREATED: {Signal.WAIT: MailboxState.WAITING, Signal.ANSWER: MailboxState.KEPT},
    MailboxState.WAITING: {Signal.WAIT: MailboxState.WAITING, Signal.ANSWER: MailboxState.CLOSED},
    MailboxState.KEPT: {Signal.WAIT: MailboxState.CLOSED},
    MailboxState.CLOSED: {Signal.WAIT: MailboxState.WAITING},
}


class ObjectType:
    """The type of a row of a run, in the terms of AFL."""

    WORKFLOW = "Workflow"
    CALL = "VariableAssignment"
    SCHEMA = "SchemaInstantiation"
    MIXIN = "Mixin"
    SCRIPT = "Script"
    LOG = "SysLog"
    ASSERT = "SysAssert"
    FUNCTION_CALL = "FunctionCall"  #: a call that a durable function awaits, below its step
    BLOCK = "AndThen"
    FAN = "Foreach"
    ITEM = "ForeachItem"
    WHEN = "AndWhen"
    CASE = "WhenCase"
    MAILBOX = "Mailbox"  #: not a step: where an answer and the step that waits for it meet

    BLOCKS = frozenset({BLOCK, FAN, ITEM, WHEN, CASE})
    #: Blocks that only group others: pages show their steps, items and cases.
    FRAMES = frozenset({BLOCK, FAN, WHEN})
    HANDLING = frozenset({WORKFLOW, CALL, SCHEMA, MIXIN, SCRIPT})  #: types that may have a catch
    #: Shown and counted as steps.
    STEPS = frozenset({CALL, SCHEMA, MIXIN, LOG, ASSERT, FUNCTION_CALL})


MACHINES: Mapping[str, Table] = {
    **dict.fromkeys(sorted(ObjectType.HANDLING), STEP_TRANSITIONS),
    **dict.fromkeys((ObjectType.LOG, ObjectType.ASSERT), SYS_TRANSITIONS),
    **dict.fromkeys(sorted(ObjectType.BLOCKS), BLOCK_TRANSITIONS),
    ObjectType.FUNCTION_CALL: CALL_TRANSITIONS,
    ObjectType.MAILBOX: MAILBOX_TRANSITIONS,
}

#: A run. Its state changes through `next_run_state` only. Advance: its root step has completed.
RUN_TRANSITIONS: Table = {
    RunState.QUEUED: {Signal.RELEASE: RunState.RUNNING, Signal.CANCEL: RunState.CANCELLED},
    RunState.RUNNING: {
        Signal.ADVANCE: RunState.COMPLETED,
        Signal.FAIL: RunState.FAILED,
        Signal.HOLD: RunState.HELD,
        Signal.CANCEL: RunState.CANCELLING,
    },
    RunState.HELD: {
        # The tries that were running when it was held may end it.
        Signal.ADVANCE: RunState.COMPLETED,
        Signal.FAIL: RunState.FAILED,
        Signal.RELEASE: RunState.RUNNING,
        Signal.CANCEL: RunState.CANCELLING,
    },
    # It fails if its deadline has passed.
    RunState.CANCELLING: {Signal.CANCEL: RunState.CANCELLED, Signal.FAIL: RunState.FAILED},
    **{state: {} for state in sorted(RunState.FINAL)},
}

#: Transitions of a task by a claim, a report or an intent of the evaluator. The guards of the
#: store's statements are built from it.
TASK_TRANSITIONS: Mapping[str, frozenset[str]] = {
    TaskState.PENDING: frozenset(
        {TaskState.RUNNING, TaskState.HELD, TaskState.CANCELED, TaskState.IGNORED}
    ),
    TaskState.WAITING: frozenset({TaskState.PENDING, TaskState.HELD, TaskState.CANCELED}),
    # A task with keys waits for them again: while it was held it took no slot.
    TaskState.HELD: frozenset({TaskState.PENDING, TaskState.WAITING, TaskState.CANCELED}),
    # Ignored: a child run continues its step.
    TaskState.RUNNING: frozenset({TaskState.PENDING, TaskState.WAITING, TaskState.HELD})
    | TaskState.FINAL,
    **dict.fromkeys(sorted(TaskState.FINAL), frozenset()),
}


def tasks_that_may_become(state: str) -> list[str]:
    """Return the states from which a task may enter that one."""
    return sorted(before for before, after in TASK_TRANSITIONS.items() if state in after)


#: An event on its way to success: the next state.
EVENT_TRANSITIONS: dict[str, str] = {
    EventState.CREATED: EventState.DISPATCHED,
    EventState.DISPATCHED: EventState.PROCESSING,
    EventState.PROCESSING: EventState.COMPLETED,
}

_ENDED = {EventState.COMPLETED, EventState.ERROR}
#: All states that may follow. An event ends from any state: by an answer from outside, a result of
#: the cache, a cancellation.
EVENT_CHANGES: Mapping[str, frozenset[str]] = {
    EventState.CREATED: frozenset({EventState.DISPATCHED, *_ENDED}),
    # A task with limits that was held or released waits for them again.
    EventState.DISPATCHED: frozenset({EventState.CREATED, EventState.PROCESSING, *_ENDED}),
    # A task that is released, or followed by another try, waits for a worker again.
    EventState.PROCESSING: frozenset({EventState.CREATED, EventState.DISPATCHED, *_ENDED}),
    EventState.COMPLETED: frozenset(),
    EventState.ERROR: frozenset(),
}

#: The state of an event by that of its last task, while its step waits at it.
_EVENT_OF_TASK: Mapping[str, str] = {
    TaskState.WAITING: EventState.CREATED,
    TaskState.PENDING: EventState.DISPATCHED,
    TaskState.HELD: EventState.DISPATCHED,
    TaskState.RUNNING: EventState.PROCESSING,
    TaskState.COMPLETED: EventState.COMPLETED,
    TaskState.FAILED: EventState.PROCESSING,
    TaskState.IGNORED: EventState.PROCESSING,
    TaskState.CANCELED: EventState.ERROR,  # a retry has superseded its step
}


def event_state(step_state: str, task_state: str | None, ended: str | None = None) -> str:
    """Return the state of an event, derived from its step and its last task.

    `ended` is the end that an input from outside gave it, if the history has one.
    """
    if ended is not None:
        return ended
    if step_state == StepState.EVENT_TRANSMIT:
        return _EVENT_OF_TASK.get(task_state or "", EventState.CREATED)
    if task_state == TaskState.COMPLETED:
        return EventState.COMPLETED  # its step may have failed since, in its body
    if step_state in StepState.UNSUCCESSFUL or task_state == TaskState.FAILED:
        return EventState.ERROR
    return EventState.COMPLETED


def is_ended_from_outside(step_state: str, task_state: str | None) -> bool:
    """Whether only the history knows how an event has ended: its last task does not."""
    if step_state == StepState.EVENT_TRANSMIT:
        return task_state == TaskState.IGNORED  # superseded while a child run went on
    return task_state not in (TaskState.COMPLETED, TaskState.FAILED)


def next_state(object_type: str, path: str, state: str, signal: Signal) -> str:
    """Return the next state, or raise `IllegalTransition`."""
    try:
        return MACHINES[object_type][state][signal]
    except KeyError:
        raise IllegalTransition(path, state, signal) from None


def next_run_state(run_id: str, state: str, signal: Signal) -> str:
    """Return the next state of a run, or raise `IllegalTransition`."""
    try:
        return RUN_TRANSITIONS[state][signal]
    except KeyError:
        raise IllegalTransition(f"run {run_id}", state, signal) from None
