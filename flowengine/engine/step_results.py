"""Results and failures that are given for a step from outside, without a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Committer, NewFact
from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.result_validation import checked_answer
from flowengine.errors import UnknownStep, ValueRefused
from flowengine.evaluator.failures import limited
from flowengine.evaluator.records import Step
from flowengine.evaluator.states import StepState, TaskState
from flowengine.program.limits import Limits
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import Session, Store


class StepResults:
    """Ends the steps of one database that wait for an event."""

    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        committer: Committer,
        after_commit: AfterCommit,
        settings: Settings,
    ) -> None:
        self._database, self._programs = database, programs
        self._committer, self._after_commit = committer, after_commit
        self._limits = Limits.of(settings)
        self._tenant = settings.tenant
        self._value_limits = (settings.max_value_bytes, settings.max_json_depth)

    def continue_step(self, step_id: str, result: Mapping[str, Json] | Json = None) -> None:
        """Answer a step that waits for its event. Idempotent: a step that has moved on ignores it.

        `result` is a map of the facet's results by name, or the value of its only result. Raises
        ValueRefused for an answer that the stored types and schemas of the facet refuse: no facet
        code has validated it.
        """
        with self._database.read() as session:
            step = self._visible_step(session, step_id)
            run = session.runs.get(step.run_id)
            assert run is not None
            facet = self._programs.plan(session, run.program_hash).facets.get(step.facet_name)
        about = (self._value_limits, self._limits)
        answer, problem = checked_answer(facet, step, result, *about)
        if not problem:
            self._add_fact(step, "StepContinue", {"result": answer})
        elif self._waits(step):
            raise ValueRefused(problem)

    def _waits(self, step: Step) -> bool:
        """Whether a step waits for its event: it has no result, evaluated or only recorded."""
        if step.state != StepState.EVENT_TRANSMIT:
            return False
        with self._database.read() as session:
            last = session.tasks.last_tries(step.run_id, [step.id]).get(step.id)
        return last is None or last.state != TaskState.COMPLETED

    def fail_step(self, step_id: str, error_message: str) -> None:
        """Fail a step that waits for its event. Idempotent: a step that has moved on ignores it."""
        with self._database.read() as session:
            step = self._visible_step(session, step_id)
        error = limited({"type": "StepFailed", "message": str(error_message)}, self._limits)
        self._add_fact(step, "StepFail", {"error": error})

    def _visible_step(self, session: Session, step_id: str) -> Step:
        """Return a step; in an app that is bound to a tenant, a step of this tenant's runs."""
        step = session.steps.by_id(step_id)
        if step is not None and self._tenant:
            run = session.runs.get(step.run_id)
            step = step if run is not None and run.tenant == self._tenant else None
        if step is None:
            raise UnknownStep(step_id)
        return step

    def _add_fact(self, step: Step, kind: str, payload: dict[str, Any]) -> None:
        fact = {"step_id": step.id, "step_key": step.key, **payload}
        effects, _ = self._committer.commit_locked(step.run_id, fact=NewFact(kind, fact))
        self._after_commit.finish([effects])
