"""Answers for steps from outside, bypassing their tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Committer
from flowengine.engine.program_cache import ProgramCache
from flowengine.errors import UnknownStep, ValueRefused
from flowengine.evaluator.records import Step
from flowengine.program.nodes import Json
from flowengine.program.types import misfits
from flowengine.store import Session, Store, codec


class StepAnswers:
    """Continues or fails steps that wait for their event."""

    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        committer: Committer,
        after_commit: AfterCommit,
        *,
        max_value_bytes: int,
    ) -> None:
        self._database, self._programs = database, programs
        self._committer, self._after_commit = committer, after_commit
        self._max_value_bytes = max_value_bytes

    def continue_step(self, step_id: str, result: Mapping[str, Json] | None = None) -> None:
        """Answer a step that waits for its event. Idempotent: a step that has moved on ignores it.

        The answer is validated against the declared schema, because no facet code has checked it.
        """
        answer = dict(result or {})
        codec.check_names(f"the answer for step {step_id}", answer)
        for name, value in answer.items():
            codec.check_value(f"{name!r} for step {step_id}", value, self._max_value_bytes)
        with self._database.read() as session:
            step = self._step(session, step_id)
            self._validate(session, step, answer)
        self._add_fact(step, "StepContinue", {"result": answer})

    def fail_step(self, step_id: str, error_message: str) -> None:
        """Fail a step that waits for its event. Idempotent: a step that has moved on ignores it."""
        with self._database.read() as session:
            step = self._step(session, step_id)
        error = {"type": "StepFailed", "message": error_message}
        self._add_fact(step, "StepFail", {"error": error})

    def _step(self, session: Session, step_id: str) -> Step:
        step = session.steps.by_id(step_id)
        if step is None:
            raise UnknownStep(step_id)
        return step

    def _validate(self, session: Session, step: Step, answer: dict[str, Json]) -> None:
        run = session.runs.get(step.run_id)
        assert run is not None
        plan = self._programs.plan(session, run.program_hash)
        facet = plan.facets.get(step.facet_name)
        wrong = misfits((f for f in facet.returns if f.schema), answer) if facet else []
        if wrong:
            raise ValueRefused(f"the answer for {step.path} does not fit: {'; '.join(wrong)}")

    def _add_fact(self, step: Step, kind: str, payload: dict[str, Any]) -> None:
        fact = {"step_id": step.id, "step_key": step.key, **payload}
        effects, _ = self._committer.commit_locked(step.run_id, fact=(kind, fact))
        self._after_commit.finish([effects])
