"""Hold and release of a run: while it is held, its tasks cannot be claimed.

Everything else goes on: running tries end and are evaluated, timers fire, answers are taken. New
tasks are created held.
"""

from __future__ import annotations

from flowengine.evaluator.records import TaskHold
from flowengine.evaluator.states import RunState, Signal, TaskState, next_run_state
from flowengine.evaluator.triggers import Action
from flowengine.evaluator.working_set import WorkingSet


def hold(work: WorkingSet, _: Action) -> None:
    work.run.state = next_run_state(work.run.id, work.run.state, Signal.HOLD)
    work.changes.task_hold = TaskHold.HOLD


def release(work: WorkingSet, _: Action) -> None:
    work.run.state = next_run_state(work.run.id, work.run.state, Signal.RELEASE)
    work.changes.task_hold = TaskHold.RELEASE


def state_of_new_task(run_state: str, *, has_keys: bool = False) -> str:
    if run_state == RunState.HELD:
        return TaskState.HELD
    return TaskState.WAITING if has_keys else TaskState.PENDING
