"""The engine: start runs, take reports, advance, tell.

Commit, then ring: everything a decision brings is written in one transaction, and only
then workers are told. Whoever dies in between leaves rows that the watchdog finds.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, event

from flowengine.dispatch import Bell, Group, SilentBell
from flowengine.engine import advancing, inquiry
from flowengine.engine.advancing import Commit
from flowengine.engine.handles import Run
from flowengine.engine.programs import Programs
from flowengine.engine.results import ExecutionResult, RunInfo, StepInfo
from flowengine.engine.signals import RunSignals
from flowengine.errors import InvalidInputs, UnknownRun, UnknownStep, ValueRefused
from flowengine.evaluator import RunState, TaskDefinition
from flowengine.evaluator.happenings import Failed, Succeeded, TryOutcome
from flowengine.evaluator.records import Step
from flowengine.program import Program
from flowengine.program.inputs import check_inputs
from flowengine.program.nodes import Json
from flowengine.program.types import misfits
from flowengine.settings import Settings
from flowengine.store import Database, claims, codec, reports, runs, servers, steps, tasks
from flowengine.store.claims import Claimant
from flowengine.store.servers import ServerDefinition

log = logging.getLogger("flowengine")


class Engine:
    """One database's runs. Shared by all threads of a process."""

    def __init__(
        self, database: Database, *, bell: Bell | None = None, settings: Settings | None = None
    ) -> None:
        self.database = database
        self.bell: Bell = bell or SilentBell()
        self.settings = settings or Settings()
        self.programs = Programs()
        self.signals = RunSignals(database)

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
        digest, text, plan = self.programs.prepare(program)
        facet = plan.workflow(workflow)
        codec.check_names(f"the input of {facet.name}", inputs)
        for name, value in inputs.items():
            codec.check_value(
                f"input {name!r} of {facet.name}", value, self.settings.max_value_bytes
            )
        given = {name: codec.plain(value) for name, value in inputs.items()}
        check_inputs(facet, given)
        if key is not None and (not 0 < len(key) <= 255 or "\0" in key):
            problem = "the key must have 1 to 255 characters, and no NUL among them"
            raise InvalidInputs(facet.name, [problem])
        row = {
            "id": uuid.uuid4().hex,
            "tenant": tenant,
            "workflow": facet.name,
            "program_hash": digest,
            "priority": priority,
            "labels": codec.dump(dict(labels)) if labels else None,
            "idempotency_key": key,
        }
        if connection is not None:
            commit = self._insert(connection, row, text, given)
            self._after_their_commit(connection, commit)
            return Run(self, commit.run_id)
        with self.database.write() as own:
            commit = self._insert(own, row, text, given)
        self._after(commit)
        return Run(self, commit.run_id)

    async def astart(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Mapping[str, Json],
        **options: Any,
    ) -> Run[Any]:
        """Like `start`, without blocking the event loop."""
        return await asyncio.to_thread(self.start, program, workflow, inputs, **options)

    def _insert(
        self, connection: Connection, row: dict[str, Any], text: str, inputs: dict[str, Json]
    ) -> Commit:
        now = self.database.now(connection)
        self.programs.save(connection, row["program_hash"], text, now)
        fresh = {
            "state": RunState.RUNNING,
            "generation": 0,
            "revision": 0,
            "open_steps": 0,
            "task_count": 0,
            "root_run_id": row["id"],
            "created": now,
            "updated": now,
        }
        if not runs.insert_new(connection, row | fresh):
            earlier = runs.with_key(
                connection, row["tenant"], row["workflow"], row["idempotency_key"]
            )
            return Commit(earlier.id)
        run = runs.get(connection, row["id"])
        assert run is not None
        return advancing.begin(connection, run, self.programs, inputs, now)

    def _after_their_commit(self, connection: Connection, commit: Commit) -> None:
        # SQLAlchemy tells of a commit just before it is made. Others can see what was committed
        # when the connection goes back to its pool: then we ring, and leave the rest to the
        # watchdog, for we stand in the middle of their doing.
        untold = Counter(commit.due)

        @event.listens_for(connection, "commit", once=True)
        def _keep(committing: Connection) -> None:
            committing.info.setdefault(("flowengine", id(self)), Counter()).update(untold)

        @event.listens_for(connection, "rollback", once=True)
        def _forget(_connection: Connection) -> None:
            untold.clear()

        pool = connection.engine.pool
        if not event.contains(pool, "checkin", self._ring_at_checkin):
            event.listen(pool, "checkin", self._ring_at_checkin)

    def _ring_at_checkin(self, _raw: Any, record: Any) -> None:
        if due := record.info.pop(("flowengine", id(self)), None):
            try:
                self.bell.ring(due)
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

    # --- advancing ---

    def advance(self, run_id: str) -> None:
        """Take in what happened to a run, and decide what follows from it."""
        with self.database.write() as connection:
            commit = self._take_in(connection, run_id)
        self._after(commit)

    def _take_in(self, connection: Connection, run_id: str) -> Commit:
        run = runs.lock(connection, run_id)
        if run is None:
            raise UnknownRun(run_id)
        return advancing.take_in(connection, run, self.programs, self.database.now(connection))

    def _after(self, commit: Commit) -> None:
        """Tell what was committed, and go on while the evaluator has left something.

        Groups are told at the end: a foreach is unfolded over several commits, and its join
        is rung once.
        """
        groups = dict(commit.groups)
        self._told(commit)
        while commit.has_more:
            with self.database.write() as connection:
                commit = self._take_in(connection, commit.run_id)
            for key, group in commit.groups.items():
                groups.setdefault(key, Group(group.task_list, [])).task_ids.extend(group.task_ids)
            self._told(commit)
        if groups:
            self.bell.gather(commit.run_id, groups.values())

    def _told(self, commit: Commit) -> None:
        for path, said in commit.said:
            log.info("%s: %s", path, said, extra={"action": "sys.log", "run": commit.run_id})
        if commit.due:
            self.bell.ring(commit.due)
        if commit.has_ended:
            self.signals.announce(commit.run_id)

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

    # --- tasks ---

    def claim_task(
        self,
        task_names: Sequence[str],
        task_list: str = "default",
        claimant: Claimant | None = None,
    ) -> TaskDefinition | None:
        """Take one due task of those names, or None; nobody else gets the same one."""
        claimed = self.claim(task_names, task_list, claimant or Claimant(), most=1)
        return claimed[0] if claimed else None

    def claim(
        self, task_names: Sequence[str], task_list: str, claimant: Claimant, *, most: int
    ) -> list[TaskDefinition]:
        """Take up to `most` due tasks of those names."""
        if not task_names:
            return []
        with self.database.write() as connection:
            now = self.database.now(connection)
            return claims.claim(connection, task_names, task_list, claimant, now, most)

    def claim_one(self, task_id: str, claimant: Claimant) -> TaskDefinition | None:
        """Take this task, if it is still to be had."""
        with self.database.write() as connection:
            now = self.database.now(connection)
            return claims.claim_one(connection, task_id, claimant, now)

    def report(self, task: TaskDefinition, outcome: TryOutcome, *, in_chord: bool = False) -> bool:
        """Record how a try ended and decide what follows; False: the lease was lost before.

        A result that feeds a join with others is only counted: who reports the last of them
        evaluates, or the chord's callback does. An error is evaluated at once.
        """
        if isinstance(outcome, Succeeded):
            outcome = self._storable(task, outcome)
        if task.join_id is None or not isinstance(outcome, Succeeded):
            return self.end_try(task.workflow_id, task.uuid, task.lease, outcome)
        recorded = self._record(task.uuid, task.lease, outcome)
        if recorded is None:
            self._refused(task.workflow_id, task.uuid, task.lease)
            return False
        if recorded.left is not None and recorded.left <= 0 and not in_chord:
            self.advance(task.workflow_id)
        return True

    def end_try(self, run_id: str, task_id: str, lease: int, outcome: TryOutcome) -> bool:
        """End a try, and commit all that follows from it together with it."""
        with self.database.write() as connection:
            run = runs.lock(connection, run_id)
            if run is None:
                raise UnknownRun(run_id)
            now = self.database.now(connection)
            recorded = reports.record(connection, task_id, lease, outcome, now)
            commit = Commit(run_id)
            if recorded is not None:
                commit = advancing.take_in(connection, run, self.programs, now)
        if recorded is None:
            self._refused(run_id, task_id, lease)
        self._after(commit)
        return recorded is not None

    def record(self, task: TaskDefinition, outcome: TryOutcome) -> bool:
        """Record how a try ended, and leave the evaluation to somebody else.

        It takes no lock on the run.
        """
        if isinstance(outcome, Succeeded):
            outcome = self._storable(task, outcome)
        return self._record(task.uuid, task.lease, outcome) is not None

    def _record(self, task_id: str, lease: int, outcome: TryOutcome) -> reports.Recorded | None:
        with self.database.write() as connection:
            now = self.database.now(connection)
            return reports.record(connection, task_id, lease, outcome, now)

    def _refused(self, run_id: str, task_id: str, lease: int) -> None:
        log.warning(
            "refused a late report of task %s: lease %d is no longer held",
            task_id,
            lease,
            extra={"action": "report_refused", "run": run_id},
        )

    def _storable(self, task: TaskDefinition, outcome: Succeeded) -> TryOutcome:
        """A result that cannot be stored is a failure of the try that made it."""
        limit = self.settings.max_value_bytes
        try:
            codec.check_names(f"what {task.name} returned", outcome.result)
            for name, value in outcome.result.items():
                codec.check_value(f"{name!r} returned by {task.name}", value, limit)
        except ValueRefused as problem:
            error = {"type": type(problem).__name__, "message": str(problem)}
            return Failed(error, retry=False)
        return outcome

    def heartbeat(self, task: TaskDefinition) -> bool:
        """Show that a task is being worked on; False: the lease was lost."""
        with self.database.write() as connection:
            now = self.database.now(connection)
            return reports.beat(connection, task.uuid, task.lease, now)

    def release(self, task: TaskDefinition) -> bool:
        """Hand a claimed task back unfinished."""
        return self.hand_back(task.uuid, task.lease, task.task_list_name)

    def hand_back(self, task_id: str, lease: int, task_list: str) -> bool:
        """The same, for whoever knows no more of a task than that."""
        with self.database.write() as connection:
            now = self.database.now(connection)
            released = reports.release(connection, task_id, lease, now)
        if released:
            self.bell.ring({task_list: 1})
        return released

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
        facet = self.programs.plan(connection, run.program_hash).facets.get(step.facet_name)
        wrong = misfits((f for f in facet.returns if f.schema), answer) if facet else []
        if wrong:
            raise ValueRefused(f"the answer for {step.path} does not fit: {'; '.join(wrong)}")

    def _tell_run(self, step: Step, kind: str, payload: dict[str, Any]) -> None:
        with self.database.write() as connection:
            run = runs.lock(connection, step.run_id)
            assert run is not None
            now = self.database.now(connection)
            fact = {"step_id": step.id, "step_key": step.key, **payload}
            runs.add_fact(connection, uuid.uuid4().hex, step.run_id, kind, fact, now)
            commit = advancing.take_in(connection, run, self.programs, now)
        self._after(commit)

    # --- looking ---

    def run(self, run_id: str) -> Run[Any]:
        """Return the handle of a run that exists."""
        self.get(run_id)
        return Run(self, run_id)

    def get(self, run_id: str) -> RunInfo:
        with self.database.read() as connection:
            return inquiry.run_info(connection, run_id)

    def find(self, beginning: str) -> RunInfo:
        """Return the run whose id begins so; it must be the only one."""
        with self.database.read() as connection:
            return inquiry.find_run(connection, beginning)

    def list(
        self, *, workflow: str | None = None, state: str | None = None, limit: int = 50
    ) -> Sequence[RunInfo]:
        """Return the newest runs."""
        with self.database.read() as connection:
            return inquiry.newest_runs(connection, workflow=workflow, state=state, limit=limit)

    def steps(self, run_id: str) -> Sequence[StepInfo]:
        """Return all steps of a run, in the order of their creation."""
        with self.database.read() as connection:
            inquiry.run_info(connection, run_id)
            return inquiry.step_infos(connection, run_id)

    def tasks(self, run_id: str) -> Sequence[TaskDefinition]:
        """Return all tries of a run, in the order of their creation."""
        with self.database.read() as connection:
            return tasks.load_run(connection, run_id)

    def servers(self) -> Sequence[ServerDefinition]:
        """Return the servers that have not left, with what they have handled."""
        with self.database.read() as connection:
            found = servers.alive(connection)
            servers.add_counts(connection, found)
            return found

    def close(self) -> None:
        self.signals.close()
        self.database.close()
