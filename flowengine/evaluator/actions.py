"""Actions: a person, a token, a schedule or a server changes the course of a run.

An action is a fact in the inbox of its run, decided under the run's lock like a report: so it
cannot race a worker into an illegal state. Engine, command line and pages ask `allowed_actions`
for the actions that a run or a step takes in its state; the evaluator asks it again under the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from flowengine.evaluator.records import Refusal, Step
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Action
from flowengine.evaluator.working_set import WorkingSet


class ActionKind(StrEnum):
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    SKIP = "skip"
    COMPLETE = "complete"


#: The actions on a whole run, by its state.
RUN_ACTIONS: Mapping[str, frozenset[ActionKind]] = {
    RunState.RUNNING: frozenset(),
    RunState.COMPLETED: frozenset(),
    RunState.FAILED: frozenset(),
}


def allowed_actions(run_state: str, step: Step | None = None) -> frozenset[ActionKind]:
    """Return the actions that a run, or a step of it, takes in its state."""
    del step
    return RUN_ACTIONS[run_state]


_APPLY: dict[ActionKind, Callable[[WorkingSet, Action], None]] = {}


def apply(work: WorkingSet, action: Action) -> None:
    """Apply an action, or refuse it: nothing of a refused action is stored."""
    kind = ActionKind(action.kind)
    step = work.find(action.step_key) if action.step_key else None
    if kind not in allowed_actions(work.run.state, step):
        subject = f"step {step.path}" if step is not None else "the run"
        state = step.state if step is not None else work.run.state
        reason = f"{subject} is {state} and takes no {kind}"
        work.changes.refusals.append(Refusal(action.id, reason))
        return
    _APPLY[kind](work, action)
