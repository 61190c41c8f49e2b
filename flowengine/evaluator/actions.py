"""Actions: a person, a token, a schedule or a server changes the course of a run.

An action is a fact in the inbox of its run, decided under the run's lock like a report: so it
cannot race a worker into an illegal state. Engine, command line and pages ask `allowed_actions`
for the actions that a run or a step takes in its state; the evaluator asks it again under the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from flowengine.evaluator import cancellation, holds, renewal
from flowengine.evaluator.failures import Refused
from flowengine.evaluator.records import Refusal
from flowengine.evaluator.states import STEP_TRANSITIONS, RunState, StepState
from flowengine.evaluator.triggers import Action
from flowengine.evaluator.working_set import WorkingSet


class ActionKind(StrEnum):
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    SKIP = "skip"
    COMPLETE = "complete"


_NONE: frozenset[ActionKind] = frozenset()
_RETRY = frozenset({ActionKind.RETRY})
_BY_HAND = frozenset({ActionKind.RETRY, ActionKind.SKIP, ActionKind.COMPLETE})

#: The actions on a whole run, by its state.
RUN_ACTIONS: Mapping[str, frozenset[ActionKind]] = {
    RunState.QUEUED: frozenset({ActionKind.CANCEL}),
    RunState.RUNNING: frozenset({ActionKind.CANCEL, ActionKind.HOLD, *_BY_HAND}),
    RunState.HELD: frozenset({ActionKind.CANCEL, ActionKind.RELEASE, *_BY_HAND}),
    RunState.CANCELLING: _NONE,
    RunState.COMPLETED: _RETRY,
    RunState.FAILED: _BY_HAND,
    RunState.CANCELLED: _RETRY,
}

#: The actions on one step: by the state of its run, then by its own. Only a step that waits at its
#: event, or has failed, is ended by hand; every step that has begun may be retried.
_OF_STEPS = dict.fromkeys(STEP_TRANSITIONS, _RETRY) | {StepState.CREATED: _NONE}
_ENDED_BY_HAND = _OF_STEPS | {StepState.EVENT_TRANSMIT: _BY_HAND, StepState.ERROR: _BY_HAND}
STEP_ACTIONS: Mapping[str, Mapping[str, frozenset[ActionKind]]] = {
    RunState.RUNNING: _ENDED_BY_HAND,
    RunState.HELD: _ENDED_BY_HAND,
    RunState.QUEUED: {},
    RunState.CANCELLING: {},
    RunState.COMPLETED: _OF_STEPS,
    RunState.FAILED: _ENDED_BY_HAND,
    RunState.CANCELLED: _OF_STEPS,
}

#: Actions whose purpose the state has fulfilled: they change nothing and are no error, so that
#: an action may be sent again.
FULFILLED: Mapping[ActionKind, frozenset[str]] = {
    ActionKind.CANCEL: frozenset({RunState.CANCELLING, RunState.CANCELLED}),
    ActionKind.HOLD: frozenset({RunState.HELD}),
    ActionKind.RELEASE: frozenset({RunState.RUNNING}),
}

_ENDED = "it has ended, so nothing is left to {kind}"
#: The advice beside a refused action, by the state of the run.
CURES: Mapping[str, Mapping[ActionKind, str]] = {
    RunState.CANCELLING: dict.fromkeys(
        ActionKind, "wait until it is CANCELLED: its always blocks run"
    ),
    RunState.COMPLETED: dict.fromkeys(ActionKind, _ENDED),
    RunState.FAILED: dict.fromkeys(ActionKind, _ENDED),
    RunState.CANCELLED: dict.fromkeys(ActionKind, _ENDED),
}


class StepFacts(Protocol):
    """The part of a step that decides its actions: of the evaluator's record, or of a reader's."""

    @property
    def state(self) -> str: ...

    @property
    def path(self) -> str: ...


def allowed_actions(run_state: str, step: StepFacts | None = None) -> frozenset[ActionKind]:
    """Return the actions that a run, or a step of it, takes in its state."""
    if step is None:
        return RUN_ACTIONS[run_state]
    return STEP_ACTIONS[run_state].get(step.state, _NONE)


def why_refused(kind: ActionKind, run_state: str, step: StepFacts | None = None) -> str:
    """Return why an action is refused and what to do instead; empty if it is allowed."""
    allowed = allowed_actions(run_state, step)
    if kind in allowed:
        return ""
    subject = "the run" if step is None else f"step {step.path} of a {run_state} run"
    state = run_state if step is None else _label(step.state)
    reason = f"{subject} is {state}"
    if cure := CURES.get(run_state, {}).get(kind):
        return f"{reason}: {cure.format(kind=kind)}"
    names = ", ".join(sorted(allowed)) or "no action"
    return f"{reason}, and takes {names}"


def _label(step_state: str) -> str:
    """Return the last word of a state: Error of ``state.statement.Error``."""
    return step_state.rpartition(".")[2] if step_state in StepState.FINAL else "in progress"


#: A handler changes the working set, or raises `Refused` before it has changed anything.
Handler = Callable[[WorkingSet, Action], None]
HANDLERS: dict[ActionKind, Handler] = {
    ActionKind.CANCEL: cancellation.cancel,
    ActionKind.HOLD: holds.hold,
    ActionKind.RELEASE: holds.release,
    ActionKind.RETRY: renewal.retry,
    ActionKind.SKIP: renewal.skip,
    ActionKind.COMPLETE: renewal.complete,
}


def apply(work: WorkingSet, action: Action) -> None:
    """Apply an action, or refuse it: nothing of a refused action is stored."""
    kind = ActionKind(action.kind)
    state = work.run.state
    if not action.step_key and state in FULFILLED.get(kind, ()):
        return
    try:
        step = work.find(action.step_key) if action.step_key else None
        if action.step_key and step is None:
            raise Refused("the run has no such step")
        if problem := why_refused(kind, state, step):
            raise Refused(problem)
        HANDLERS[kind](work, action)
    except Refused as refused:
        work.changes.refusals.append(Refusal(action.id, str(refused)))
