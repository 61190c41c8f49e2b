"""The state machines of agents, as tables.

`next_head_state` and `next_inbox_state` are the only transition functions: a transition without an
entry cannot be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from flowengine.errors import IllegalTransition


class HeadState:
    """The state of an agent: of its active turn, or that it has none."""

    IDLE = "idle"
    DISPATCHED = "dispatched"  #: a turn is active, and no worker has entered it
    RUNNING = "running"  #: a model call is under way
    SUSPENDED = "suspended"  #: the turn waits for reports of its calls

    ACTIVE = frozenset({DISPATCHED, RUNNING, SUSPENDED})
    ALL = (IDLE, DISPATCHED, RUNNING, SUSPENDED)


class HeadSignal(StrEnum):
    """The input of an agent's state machine."""

    DISPATCH = "dispatch"
    ENTER = "enter"  #: the first try of a model call has begun
    RECOVER = "recover"  #: a later try has begun: the one before it was lost, or failed
    CONTINUE = "continue"  #: the next model call follows: no call of the answer is waited for
    SUSPEND = "suspend"
    REPORT = "report"  #: of a call, while others are open
    RESUME = "resume"  #: the last report has arrived
    FINISH = "finish"
    END = "end"  #: by a stop, or by a limit of the watchdog


_IDLE, _DISPATCHED, _RUNNING, _SUSPENDED = HeadState.ALL

HEAD_TRANSITIONS: Mapping[str, Mapping[HeadSignal, str]] = {
    _IDLE: {HeadSignal.DISPATCH: _DISPATCHED},
    _DISPATCHED: {HeadSignal.ENTER: _RUNNING, HeadSignal.END: _IDLE, HeadSignal.FINISH: _IDLE},
    _RUNNING: {
        HeadSignal.ENTER: _RUNNING,
        HeadSignal.RECOVER: _RUNNING,
        HeadSignal.CONTINUE: _RUNNING,
        HeadSignal.SUSPEND: _SUSPENDED,
        HeadSignal.FINISH: _IDLE,
        HeadSignal.END: _IDLE,
    },
    _SUSPENDED: {
        HeadSignal.REPORT: _SUSPENDED,
        HeadSignal.RESUME: _RUNNING,
        HeadSignal.FINISH: _IDLE,
        HeadSignal.END: _IDLE,
    },
}

#: Signals that raise the epoch: whoever acts under the earlier one is refused.
RAISES_EPOCH = frozenset(
    {HeadSignal.DISPATCH, HeadSignal.RECOVER, HeadSignal.RESUME, HeadSignal.END}
)


class InboxState:
    """The state of a message in an agent's inbox."""

    QUEUED = "queued"  #: a turn that waits for the end of those before it
    PENDING = "pending"
    DEFERRED = "deferred"  #: tried in vain, and due again at `next_retry_at`
    CONSUMED = "consumed"
    SKIPPED = "skipped"  #: a turn that was cancelled before it was dispatched
    ERROR = "error"

    FINAL = frozenset({CONSUMED, SKIPPED, ERROR})
    DUE = frozenset({PENDING, DEFERRED})


INBOX_TRANSITIONS: Mapping[str, frozenset[str]] = {
    InboxState.QUEUED: frozenset({InboxState.PENDING, InboxState.SKIPPED, InboxState.ERROR}),
    InboxState.PENDING: frozenset({InboxState.CONSUMED, InboxState.DEFERRED, InboxState.ERROR}),
    InboxState.DEFERRED: frozenset({InboxState.CONSUMED, InboxState.DEFERRED, InboxState.ERROR}),
    InboxState.CONSUMED: frozenset(),
    InboxState.SKIPPED: frozenset(),
    InboxState.ERROR: frozenset(),
}


class MessageType:
    """The kind of a message in an agent's inbox."""

    TURN = "turn"
    UI_ACTION = "ui_action"
    MODEL_RESULT = "model_result"
    TOOL_RESULT = "tool_result"
    TIMEOUT = "timeout"
    STOP = "stop"

    STARTS = frozenset({TURN, UI_ACTION})
    REPORTS = frozenset({TOOL_RESULT, TIMEOUT})
    ALL = frozenset({TURN, UI_ACTION, MODEL_RESULT, TOOL_RESULT, TIMEOUT, STOP})


class WaitState:
    """The state of a call that a turn waits for."""

    WAITING = "waiting"
    APPLIED = "applied"  #: its result is a card of the output box
    EXPIRED = "expired"  #: its deadline has passed; the result says so
    DROPPED = "dropped"  #: the turn has ended without it

    OPEN = frozenset({WAITING})


class TaskStatus:
    """How a turn, or a call, has ended."""

    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    PARTIAL = "partial"

    ALL = (SUCCESS, FAILED, CANCELED, TIMEOUT, PARTIAL)


class TurnState:
    """The state of a turn. While it is active, its agent's head has the details."""

    QUEUED = "queued"
    ACTIVE = "active"
    FINISHED = "finished"


class AfterExecution:
    """The consequence of a call's result: another model call, or the end of the turn."""

    SUSPEND = "suspend"
    TERMINATE = "terminate"

    ALL = frozenset({SUSPEND, TERMINATE})


def next_head_state(state: str, signal: HeadSignal) -> str:
    """Return the state that follows; raises IllegalTransition."""
    following = HEAD_TRANSITIONS[state].get(signal)
    if following is None:
        raise IllegalTransition("agent", state, signal)
    return following


def check_inbox_transition(state: str, following: str) -> None:
    """Raise IllegalTransition unless a message may go on so."""
    if following not in INBOX_TRANSITIONS[state]:
        raise IllegalTransition("inbox message", state, following)
