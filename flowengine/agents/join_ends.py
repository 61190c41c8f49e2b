"""The end of a join that comes from outside its tasks: its deadline, or the failure of one task.

A step of the join's run ends it. A task may begin at the same time; so the step is stored before it
looks for turns, a turn is stored before its task looks for the step, and one sees the other.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from flowengine.engine.engine import Engine
from flowengine.errors import ActionRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import derived_id, row_key
from flowengine.evaluator.states import StepState
from flowengine.program.addresses import RowKind
from flowengine.store.agent_joins import JoinStep
from flowengine.turns.joins import ENDS
from flowengine.turns.records import Turn

if TYPE_CHECKING:
    from flowengine.agents.runtime import Agents

DEADLINE_STEP = "deadline"  #: the name of the step that waits for the end of a join


class JoinEnds:
    """Ends joins of one engine."""

    def __init__(self, agents: Agents, engine: Engine) -> None:
        self._agents, self._engine = agents, engine

    def end(self, run_id: str, end: str) -> None:
        """Stop the turns that the steps of a join wait for; idempotent."""
        with self._engine.database.read() as session:
            turns = session.agent_joins.open_of_run(run_id)
        for project, turn_id in turns:
            self._stop(project, turn_id, end)

    def begin(self, project: str, turn_id: str, task: TaskDefinition, join: str) -> None:
        """Stop a new turn if its join is being ended; let the time of a repeated task begin.

        A fork or a retry runs tasks again and keeps the end of the earlier ones. Its generation
        is the lower one: it is no end of this task, and the deadline is run again for it.
        """
        short, ends = join.rpartition(".")[2], {join + end: end for end in ENDS}
        key = row_key(RowKind.STEP, f"{short}.{DEADLINE_STEP}")
        with self._engine.database.read() as session:
            own = session.steps.by_id(task.step_id)
            found = session.agent_joins.ends(task.workflow_id, tuple(ends), key)
        generation = 0 if own is None else own.generation
        for step in found:
            if step.facet in ends and step.generation >= generation:
                self._stop(project, turn_id, ends[step.facet])
                return
        for step in found:
            is_ended = step.state in StepState.FINAL
            if step.key == key and is_ended and step.generation < generation:
                self._renew_deadline(task.workflow_id, f"{short}.{DEADLINE_STEP}", step)

    def turn_of(self, run_id: str, path: str) -> Turn | None:
        """Return the turn of the step of a task, if it was enqueued before the step failed."""
        key = row_key(RowKind.STEP, path)
        with self._engine.database.read() as session:
            run, step = session.runs.get(run_id), session.steps.load({run_id: [key]})[run_id]
            if run is None or key not in step:
                return None
            return session.agent_turns.get(run.tenant, derived_id(step[key].id, "turn"))

    def _renew_deadline(self, run_id: str, path: str, ended: JoinStep) -> None:
        """Run the deadline again, once for all tasks; a run that is canceled refuses it."""
        reason = "tasks of the join run again"
        with suppress(ActionRefused):
            self._engine.retry(run_id, from_step=path, reason=reason, key=f"again {ended.id}")

    def _stop(self, project: str, turn_id: str, end: str) -> None:
        ending = ENDS[end]
        self._agents.stop(project, turn_id, ending.reason, code=ending.code, status=ending.status)
