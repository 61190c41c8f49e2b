"""The engine: start runs, take reports, advance, tell.

Commit, then ring: everything a decision brings is written in one transaction, and only
then workers are told. Whoever dies in between leaves rows that the watchdog finds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from flowengine.engine import starter
from flowengine.engine.gc_pause import gc_paused
from flowengine.engine.handles import Run
from flowengine.engine.read_api import ReadApi
from flowengine.engine.results import ExecutionResult
from flowengine.engine.staging import Commit
from flowengine.engine.task_api import TaskApi
from flowengine.errors import UnknownRun, UnknownStep, ValueRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import Step
from flowengine.program import Program
from flowengine.program.nodes import Json
from flowengine.program.types import misfits
from flowengine.store import codec, runs, steps
from flowengine.store.executors import SqlalchemyExecutor

log = logging.getLogger("flowengine")

_STARTED_TOGETHER = 50  # runs of one commit


class Engine(TaskApi, ReadApi):
    """One database's runs. Shared by all threads of a process."""

    # --- starting ---

    def start(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Mapping[str, Json],
        *,
        key: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        tenant: str = "",
        connection: Connection | None = None,
    ) -> Run[Any]:
        """Start a run; it is durable when this returns.

        With `key` a run is started once: a second start with the key of the first returns the
        first run. With `connection` the run is part of the caller's own transaction: it exists
        when that commits, and never did when it rolls back.
        """
        said = {"priority": priority, "labels": labels or {}, "tenant": tenant}
        ordered = self._order(program, workflow, inputs, key=key, **said)
        if connection is not None:
            now = self.database.now()
            (commit,) = starter.start(SqlalchemyExecutor(connection), [ordered], self.programs, now)
            self._after_their_commit(connection, commit)
            return Run(self, commit.run_id)
        return self._start([ordered])[0]

    def start_many(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Iterable[Mapping[str, Json]],
        *,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        tenant: str = "",
    ) -> list[Run[Any]]:
        """Start a run for each of these inputs, some dozens in one commit.

        All inputs are checked before the first run is started.
        """
        said = {"priority": priority, "labels": labels or {}, "tenant": tenant}
        ordered = [self._order(program, workflow, given, key=None, **said) for given in inputs]
        return [
            run
            for at in range(0, len(ordered), _STARTED_TOGETHER)
            for run in self._start(ordered[at : at + _STARTED_TOGETHER])
        ]

    def _order(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Mapping[str, Json],
        **said: Any,
    ) -> starter.Order:
        limit = self.settings.max_value_bytes
        prepared = self.programs.prepare(program)
        return starter.order(prepared, workflow, inputs, limit, **said)

    def _start(self, ordered: list[starter.Order]) -> list[Run[Any]]:
        try:
            commits = self._insert(ordered)
        except DBAPIError as problem:
            if not problem.connection_invalidated:
                raise
            commits = self._insert(ordered)  # a run that was inserted after all is found
        for an_order in ordered:
            self.programs.saved(an_order.digest)
        self._after(commits)
        return [Run(self, commit.run_id) for commit in commits]

    def start_child(
        self,
        task: TaskDefinition,
        program: Program | None,
        workflow: str,
        inputs: Mapping[str, Json],
        *,
        waits: bool,
    ) -> str:
        """Start a run for a step, whose try this is; with `waits` its end is the step's answer.

        A step has one such run: a second try finds the run of the first. Without a program it
        is one of the step's own.
        """
        with self.database.read() as connection:
            of_step = runs.get(connection, task.workflow_id)
            if of_step is None:
                raise UnknownRun(task.workflow_id)
            if program is None:
                prepared = self.programs.stored(SqlalchemyExecutor(connection), task.flow_id)
            else:
                prepared = self.programs.prepare(program)
        ordered = starter.order(
            prepared,
            workflow,
            inputs,
            self.settings.max_value_bytes,
            key=None,
            priority=of_step.priority,
            tenant=of_step.tenant,
            run_id=starter.child_run_id(task.step_id),
            parent=starter.Parent(
                of_step.id, task.step_id, task.step_key, of_step.root_run_id, waits
            ),
        )
        return self._start([ordered])[0].id

    def _insert(self, ordered: list[starter.Order]) -> list[Commit]:
        now = self.database.now()
        with gc_paused(), self.database.direct() as executor:
            return starter.start(executor, ordered, self.programs, now)

    async def astart(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Mapping[str, Json],
        **options: Any,
    ) -> Run[Any]:
        """Like `start`, without blocking the event loop."""
        return await asyncio.to_thread(self.start, program, workflow, inputs, **options)

    def _after_their_commit(self, connection: Connection, commit: Commit) -> None:
        # SQLAlchemy tells of a commit just before it is made. Others can see what was committed
        # when the connection goes back to its pool: then we ring, and leave the rest to the
        # watchdog, for we stand in the middle of their doing.
        untold = Counter(commit.due)
        for group in commit.groups.values():
            untold[group.task_list] += len(group.task_ids)

        @event.listens_for(connection, "commit", once=True)
        def _keep(committing: Connection) -> None:
            committing.info.setdefault(("flowengine", id(self)), Counter()).update(untold)

        @event.listens_for(connection, "rollback", once=True)
        def _forget(_connection: Connection) -> None:
            untold.clear()

        pool = connection.engine.pool
        if not event.contains(pool, "checkin", self._notify_at_checkin):
            event.listen(pool, "checkin", self._notify_at_checkin)

    def _notify_at_checkin(self, _raw: Any, record: Any) -> None:
        if due := record.info.pop(("flowengine", id(self)), None):
            try:
                self.notifier.notify(due)
            except Exception:  # their transaction is committed, and the watchdog rings again
                log.warning("could not tell workers of new tasks", exc_info=True)

    def execute(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Mapping[str, Json],
        **options: Any,
    ) -> ExecutionResult:
        """Start a run and tell how far it came by itself: to its end, or to its first events."""
        return self.get(self.start(program, workflow, inputs, **options).id).as_result()

    def resume(
        self,
        workflow_id: str,
        workflow_ast: Mapping[str, Any] | None = None,
        program_ast: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> ExecutionResult:
        """Evaluate a run to its next fixed point and tell how far it came.

        The program and the inputs are stored with the run: those given here are not read.
        """
        self.advance(workflow_id)
        return self.get(workflow_id).as_result()

    def run(self, run_id: str) -> Run[Any]:
        """Return the handle of a run that exists."""
        self.get(run_id)
        return Run(self, run_id)

    # --- answers from outside, past the tasks ---

    def continue_step(self, step_id: str, result: Mapping[str, Json] | None = None) -> None:
        """Answer a step that waits at its event. For a step that has gone on it does nothing."""
        answer = dict(result or {})
        codec.check_names(f"the answer for step {step_id}", answer)
        for name, value in answer.items():
            codec.check_value(f"{name!r} for step {step_id}", value, self.settings.max_value_bytes)
        with self.database.read() as connection:
            step = self._step(connection, step_id)
            self._check_answer(connection, step, answer)
        self._tell_run(step, "StepContinue", {"result": answer})

    def fail_step(self, step_id: str, error_message: str) -> None:
        """Fail a step that waits at its event. For a step that has gone on it does nothing."""
        with self.database.read() as connection:
            step = self._step(connection, step_id)
        error = {"type": "StepFailed", "message": error_message}
        self._tell_run(step, "StepFail", {"error": error})

    def _step(self, connection: Connection, step_id: str) -> Step:
        step = steps.load_by_id(connection, step_id)
        if step is None:
            raise UnknownStep(step_id)
        return step

    def _check_answer(self, connection: Connection, step: Step, answer: dict[str, Json]) -> None:
        """Hold an answer against the declared schema: nobody's code has checked it."""
        run = runs.get(connection, step.run_id)
        assert run is not None
        plan = self.programs.plan(SqlalchemyExecutor(connection), run.program_hash)
        facet = plan.facets.get(step.facet_name)
        wrong = misfits((f for f in facet.returns if f.schema), answer) if facet else []
        if wrong:
            raise ValueRefused(f"the answer for {step.path} does not fit: {'; '.join(wrong)}")

    def _tell_run(self, step: Step, kind: str, payload: dict[str, Any]) -> None:
        fact = {"step_id": step.id, "step_key": step.key, **payload}
        commit, _ = self._committer.under_lock(step.run_id, fact=(kind, fact))
        self._after([commit])

    def close(self) -> None:
        self.completions.close()
        self.database.close()
