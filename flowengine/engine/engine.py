"""The engine: start runs, take reports, advance, tell.

Commit, then ring: everything a decision brings is written in one transaction, and only
then workers are told. Whoever dies in between leaves rows that the watchdog finds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from flowengine.dispatch import Bell, Group, SilentBell
from flowengine.engine import inquiry, starting
from flowengine.engine.advancing import Commit, Taker
from flowengine.engine.handles import Run
from flowengine.engine.programs import Programs
from flowengine.engine.results import ExecutionResult, RunInfo, StepInfo
from flowengine.engine.settling import Report, Settling
from flowengine.engine.signals import RunSignals
from flowengine.errors import UnknownStep, ValueRefused
from flowengine.evaluator import EventDefinition, TaskDefinition
from flowengine.evaluator.happenings import Failed, Succeeded, TryOutcome
from flowengine.evaluator.records import Step
from flowengine.program import Program
from flowengine.program.nodes import Json
from flowengine.program.types import misfits
from flowengine.settings import Settings
from flowengine.store import (
    Database,
    claims,
    codec,
    events,
    reports,
    runs,
    servers,
    steps,
    sweeping,
    tasks,
)
from flowengine.store.claims import Claimant
from flowengine.store.executing import Borrowed
from flowengine.store.reports import Ended
from flowengine.store.servers import ServerDefinition
from flowengine.store.sweeping import Held

log = logging.getLogger("flowengine")

_STARTED_TOGETHER = 50  # runs of one commit


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
        self._settling = Settling(database, self.programs)

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
        ordered = starting.order(
            self.programs,
            program,
            workflow,
            inputs,
            self.settings.max_value_bytes,
            key=key,
            priority=priority,
            labels=labels or {},
            tenant=tenant,
        )
        if connection is not None:
            now = self.database.now()
            (commit,) = starting.start(Borrowed(connection), [ordered], self.programs, now)
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
        ordered = [
            starting.order(
                self.programs,
                program,
                workflow,
                given,
                self.settings.max_value_bytes,
                key=None,
                priority=priority,
                labels=labels or {},
                tenant=tenant,
            )
            for given in inputs
        ]
        return [
            run
            for at in range(0, len(ordered), _STARTED_TOGETHER)
            for run in self._start(ordered[at : at + _STARTED_TOGETHER])
        ]

    def _start(self, ordered: list[starting.Order]) -> list[Run[Any]]:
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

    def _insert(self, ordered: list[starting.Order]) -> list[Commit]:
        now = self.database.now()
        with self.database.direct() as executor:
            return starting.start(executor, ordered, self.programs, now)

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

    def advance(self, run_id: str, taker: Taker | None = None) -> list[TaskDefinition]:
        """Take in what happened to a run, and decide what follows from it.

        Returns the tasks that the taker goes on with.
        """
        commit, _ = self._settling.under_lock(run_id, taker=taker)
        return self._after([commit], taker)

    def _after(self, commits: Sequence[Commit], taker: Taker | None = None) -> list[TaskDefinition]:
        """Tell what was committed, and go on while the evaluator has left something.

        Groups are told at the end: a foreach is unfolded over several commits, and its join
        is rung once.
        """
        taken: list[TaskDefinition] = []
        due: Counter[str] = Counter()
        for commit in commits:
            taken += commit.taken
            due.update(commit.due)
            self._told(commit)
        if due:
            self.bell.ring(due)
        for commit in commits:
            taken += self._go_on(commit, taker)
        return taken

    def _go_on(self, commit: Commit, taker: Taker | None) -> list[TaskDefinition]:
        groups, taken = dict(commit.groups), list[TaskDefinition]()
        while commit.has_more:
            commit, _ = self._settling.under_lock(commit.run_id, taker=taker)
            for key, group in commit.groups.items():
                groups.setdefault(key, Group(group.task_list, [])).task_ids.extend(group.task_ids)
            taken += commit.taken
            if commit.due:
                self.bell.ring(commit.due)
            self._told(commit)
        if groups:
            self.bell.gather(commit.run_id, groups.values())
        return taken

    def _told(self, commit: Commit) -> None:
        for path, said in commit.said:
            log.info("%s: %s", path, said, extra={"action": "sys.log", "run": commit.run_id})
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
        self,
        task_names: Sequence[str],
        task_list: str,
        claimant: Claimant,
        *,
        most: int,
        quick: Collection[str] | None = None,
    ) -> list[TaskDefinition]:
        """Take the most urgent due task of those names, and more behind it, up to `most`.

        Only if the first is of those that are `quick`, and only quick ones; by default all are.
        """
        quick = task_names if quick is None else quick
        return self.claim_batch(task_names, task_list, claimant, most=most, quick=quick)[0]

    def claim_batch(
        self,
        task_names: Sequence[str],
        task_list: str,
        claimant: Claimant,
        *,
        most: int,
        quick: Collection[str],
    ) -> tuple[list[TaskDefinition], bool]:
        """The same, and whether more are due than were taken."""
        if not task_names:
            return [], False
        with self.database.direct() as executor:
            now = self.database.given_time
            return claims.claim(executor, task_names, task_list, claimant, now, most, quick)

    def claim_one(self, task_id: str, claimant: Claimant) -> TaskDefinition | None:
        """Take this task, if it is still to be had."""
        claimed = self.claim_these([task_id], claimant)
        return claimed[0] if claimed else None

    def claim_these(self, task_ids: Sequence[str], claimant: Claimant) -> list[TaskDefinition]:
        """Take those of these tasks that are still to be had."""
        with self.database.direct() as executor:
            return claims.claim_these(executor, task_ids, claimant, self.database.given_time)

    def report(self, task: TaskDefinition, outcome: TryOutcome, *, in_chord: bool = False) -> bool:
        """Record how a try ended and decide what follows; False: the lease was lost before."""
        accepted, _ = self.report_many([Report(task, outcome)], in_chord=in_chord)
        return task.uuid in accepted

    def report_many(
        self,
        reports: Sequence[Report],
        *,
        in_chord: bool = False,
        taker: Taker | None = None,
    ) -> tuple[set[str], list[TaskDefinition]]:
        """Record how tries ended, and decide what follows from them.

        A result that feeds a join with others is only counted: who reports the last of them
        evaluates, or the chord's callback does. Everything else is evaluated at once. Returns
        the tasks whose report was accepted, and those that the taker goes on with.
        """
        of_runs: dict[str, list[Report]] = {}
        of_joins: dict[str, list[Report]] = {}
        for report in map(self._storable, reports):
            task = report.task
            if task.join_id is not None and isinstance(report.outcome, Succeeded):
                of_joins.setdefault(task.join_id, []).append(report)
            else:
                of_runs.setdefault(task.workflow_id, []).append(report)
        accepted: set[str] = set()
        taken: list[TaskDefinition] = []
        for join_id in sorted(of_joins):
            counted = self._count(of_joins[join_id])
            accepted |= counted.keys()
            if not in_chord and any(c.left is not None and c.left <= 0 for c in counted.values()):
                taken += self.advance(of_joins[join_id][0].task.workflow_id, taker)
        if of_runs:
            commits = self._settling.at_once(of_runs, taker)
            for run_id, found in of_runs.items():
                if run_id in commits:
                    accepted |= {report.task.uuid for report in found}
                    continue
                ended = [report.ended for report in found]
                commits[run_id], late = self._settling.under_lock(run_id, ended, taker)
                accepted |= late
            taken += self._after(list(commits.values()), taker)
        for report in reports:
            if report.task.uuid not in accepted:
                self._refused(report.task.workflow_id, report.task.uuid, report.task.lease)
        return accepted, taken

    def end_try(self, run_id: str, task_id: str, lease: int, outcome: TryOutcome) -> bool:
        """End somebody else's try, and commit all that follows from it together with it."""
        commit, accepted = self._settling.under_lock(run_id, [Ended(task_id, lease, outcome)])
        if not accepted:
            self._refused(run_id, task_id, lease)
        self._after([commit])
        return bool(accepted)

    def record(self, task: TaskDefinition, outcome: TryOutcome) -> bool:
        """Record how a try ended, and leave the evaluation to somebody else.

        It takes no lock on the run.
        """
        return bool(self._count([self._storable(Report(task, outcome))]))

    def _count(self, found: Sequence[Report]) -> dict[str, reports.Recorded]:
        with self.database.direct() as executor:
            now = self.database.now()
            return reports.record(executor, [report.ended for report in found], now)

    def _refused(self, run_id: str, task_id: str, lease: int) -> None:
        log.warning(
            "refused a late report of task %s: lease %d is no longer held",
            task_id,
            lease,
            extra={"action": "report_refused", "run": run_id},
        )

    def _storable(self, report: Report) -> Report:
        """A result that cannot be stored is a failure of the try that made it."""
        task, outcome, limit = report.task, report.outcome, self.settings.max_value_bytes
        if not isinstance(outcome, Succeeded):
            return report
        try:
            codec.check_names(f"what {task.name} returned", outcome.result)
            for name, value in outcome.result.items():
                codec.check_value(f"{name!r} returned by {task.name}", value, limit)
        except ValueRefused as problem:
            error = {"type": type(problem).__name__, "message": str(problem)}
            return Report(task, Failed(error, retry=False))
        return report

    def heartbeat(self, task: TaskDefinition) -> bool:
        """Show that a task is being worked on; False: the lease was lost."""
        with self.database.write() as connection:
            now = self.database.now(connection)
            return reports.beat(connection, task.uuid, task.lease, now)

    def release(self, task: TaskDefinition) -> bool:
        """Hand a claimed task back unfinished."""
        return self.hand_back(task.uuid, task.lease, task.task_list_name)

    def held_since(self, claimant: Claimant, seconds: float) -> list[Held]:
        """Return what this claimant has held for longer than that."""
        with self.database.read() as connection:
            before = self.database.now() - round(seconds * 1000)
            return sweeping.held_since(connection, claimant, before)

    def release_many(self, tasks: Sequence[TaskDefinition]) -> None:
        """Hand claimed tasks back unfinished, all together."""
        with self.database.direct() as executor:
            held = [(task.uuid, task.lease) for task in tasks]
            released = reports.release(executor, held, self.database.now())
        if released:
            self.bell.ring(Counter(released))

    def hand_back(self, task_id: str, lease: int, task_list: str) -> bool:
        """The same, for whoever knows no more of a task than that."""
        with self.database.direct() as executor:
            released = reports.release(executor, [(task_id, lease)], self.database.now())
        if released:
            self.bell.ring({task_list: 1})
        return bool(released)

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
        plan = self.programs.plan(Borrowed(connection), run.program_hash)
        facet = plan.facets.get(step.facet_name)
        wrong = misfits((f for f in facet.returns if f.schema), answer) if facet else []
        if wrong:
            raise ValueRefused(f"the answer for {step.path} does not fit: {'; '.join(wrong)}")

    def _tell_run(self, step: Step, kind: str, payload: dict[str, Any]) -> None:
        fact = {"step_id": step.id, "step_key": step.key, **payload}
        commit, _ = self._settling.under_lock(step.run_id, fact=(kind, fact))
        self._after([commit])

    # --- looking ---

    def run(self, run_id: str) -> Run[Any]:
        """Return the handle of a run that exists."""
        self.get(run_id)
        return Run(self, run_id)

    def get(self, run_id: str) -> RunInfo:
        """Return how a run stands."""
        try:
            return self._look(run_id)
        except DBAPIError as problem:
            if not problem.connection_invalidated:
                raise
            return self._look(run_id)  # the connection was gone, perhaps not the server

    def _look(self, run_id: str) -> RunInfo:
        with self.database.glance() as executor:
            return inquiry.run_info(executor, run_id)

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
            inquiry.run_info(Borrowed(connection), run_id)
            return inquiry.step_infos(connection, run_id)

    def tasks(self, run_id: str) -> Sequence[TaskDefinition]:
        """Return all tries of a run, in the order of their creation."""
        with self.database.read() as connection:
            return tasks.load_run(connection, run_id)

    def events(self, run_id: str) -> Sequence[EventDefinition]:
        """Return what outside work a run asked for, and how far each has come."""
        with self.database.read() as connection:
            inquiry.run_info(Borrowed(connection), run_id)
            return events.load_run(connection, run_id)

    def servers(self) -> Sequence[ServerDefinition]:
        """Return the servers that have not left, with what they have handled."""
        with self.database.read() as connection:
            found = servers.alive(connection)
            servers.add_counts(connection, found)
            return found

    def close(self) -> None:
        self.signals.close()
        self.database.close()
