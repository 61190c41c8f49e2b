"""The reporter: records how tries ended, and lets the evaluator decide what follows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Committer
from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.result_validation import (
    OF_PYTHON,
    answer_by_name,
    check_result,
    check_types,
    named_result,
    refused_result,
    stated_error,
)
from flowengine.engine.staging import ContinuationPolicy, limit_names
from flowengine.errors import DoesNotFit, FlowengineError, ValueRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.failures import limited
from flowengine.evaluator.states import TaskState
from flowengine.evaluator.triggers import (
    ActivationEnded,
    Delegated,
    Failed,
    Outcome,
    Report,
    Succeeded,
)
from flowengine.program.limits import Limits
from flowengine.program.nodes import Json
from flowengine.program.plan import FacetPlan
from flowengine.program.validator import Checks
from flowengine.settings import Settings
from flowengine.step_logs.chunks import LogChunk
from flowengine.store import Store
from flowengine.store.failures import is_unavailable

log = logging.getLogger("flowengine")

Rejected = list[tuple[Report, Exception]]  #: reports that could not be evaluated, with the reason


class NotAllReported(FlowengineError):
    """Some reports were not recorded, because their runs cannot be evaluated."""

    def __init__(self, rejected: Rejected, continued: list[TaskDefinition]) -> None:
        super().__init__(rejected, continued)
        self.rejected, self.continued = rejected, continued

    def __str__(self) -> str:
        report, problem = self.rejected[0]
        count = len(self.rejected)
        subject = f"{count} reports were" if count > 1 else "a report was"
        return f"{subject} not recorded, the first of {report.task.step_path}: {problem}"


class _Isolated:
    """Confines an error to these reports, unless the database itself is unreachable."""

    def __init__(self, affected: Sequence[Report], rejected: Rejected) -> None:
        self._affected, self._rejected = affected, rejected

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, problem: BaseException | None, _trace: object) -> bool:
        if not isinstance(problem, Exception) or is_unavailable(problem):
            return False
        self._rejected += [(report, problem) for report in self._affected]
        return True


class Reporter:
    """Records the reports of one database's tasks."""

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
        self._value_limits = (settings.max_value_bytes, settings.max_json_depth)

    def report(
        self,
        task: TaskDefinition,
        outcome: Outcome,
        *,
        in_chord: bool = False,
        log: Sequence[LogChunk] = (),
    ) -> bool:
        """Record how a try ended and what follows; False if the lease was lost before.

        `log` are the last lines of the try, which are stored with its report.
        """
        try:
            accepted, _ = self.report_many([Report(task, outcome, tuple(log))], in_chord=in_chord)
        except NotAllReported as error:
            raise error.rejected[0][1] from None
        return task.uuid in accepted

    def report_many(
        self,
        reports: Sequence[Report],
        *,
        in_chord: bool = False,
        continuation: ContinuationPolicy | None = None,
    ) -> tuple[set[str], list[TaskDefinition]]:
        """Record reports and what follows from them.

        A success that feeds a join counter is only counted; the last report of the join, or the
        chord's callback, evaluates the run. All other reports are evaluated at once. Returns the
        ids of the tasks whose report was accepted, and the tasks that the worker continues with.

        Raises NotAllReported if a run cannot be evaluated although the database is reachable. The
        reports of all other runs are recorded.
        """
        rejected: Rejected = []
        by_run: dict[str, list[Report]] = {}
        by_join: dict[str, list[Report]] = {}
        delegated: list[Report] = []
        for report in self._validated(reports, rejected):
            task = report.task
            if task.join_id is not None and isinstance(report.outcome, Succeeded | Delegated):
                by_join.setdefault(task.join_id, []).append(report)
            elif isinstance(report.outcome, Delegated):
                delegated.append(report)
            else:
                by_run.setdefault(task.workflow_id, []).append(report)
        accepted = set(self._record(delegated)) if delegated else set()
        freed: set[str] = set()  # by tasks whose reports are recorded and not evaluated here
        continued: list[TaskDefinition] = []
        # Invariant: one join counter per transaction. Updating several can deadlock.
        for _, of_join in sorted(by_join.items()):
            remaining: dict[str, int | None] = {}
            with _Isolated(of_join, rejected):
                remaining = self._record(of_join)
            accepted |= remaining.keys()
            for report in of_join:
                if report.task.limits:
                    freed |= limit_names(report.task.limits)
            is_last = any(count is not None and count <= 0 for count in remaining.values())
            if in_chord or not is_last:
                continue
            run_id = of_join[0].task.workflow_id
            if effects := self._after_commit.consume_inbox(run_id, continuation):
                continued += self._after_commit.finish([effects], continuation)
        if by_run:
            try:
                commits = self._committer.commit_optimistically(by_run, continuation)
            except Exception as problem:
                if is_unavailable(problem):
                    raise
                commits = {}  # one run failed the shared statement: commit each alone to find it
            for run_id, of_run in by_run.items():
                if run_id in commits:
                    accepted |= {report.task.uuid for report in of_run}
                    continue
                with _Isolated(of_run, rejected):
                    commits[run_id], held = self._committer.commit_locked(
                        run_id, of_run, continuation
                    )
                    accepted |= held
            continued += self._after_commit.finish(list(commits.values()), continuation)
        for report in delegated:
            if report.task.limits:
                freed |= limit_names(report.task.limits)
        if freed:
            self._after_commit.admit({}, freed)
        if rejected:
            raise NotAllReported(rejected, continued)
        for report in reports:
            # A child run may end before its start is recorded: that report is not late.
            if report.task.uuid not in accepted and not isinstance(report.outcome, Delegated):
                self._log_refusal(report.task)
        return accepted, continued

    def end_try(
        self, run_id: str, task_id: str, lease: int, outcome: Outcome, *, wait: bool = True
    ) -> bool:
        """End a try on behalf of its holder; False if its lease was lost before.

        With `wait=False`, return False at once if the run is locked.
        """
        task = TaskDefinition(task_id, "", "", run_id, "", "", lease=lease)
        reports = [Report(task, outcome)]
        effects, accepted = self._committer.commit_locked(run_id, reports, wait=wait)
        if wait and not accepted:
            self._log_refusal(task)
        self._after_commit.finish([effects])
        return bool(accepted)

    def record(self, task: TaskDefinition, outcome: Outcome) -> bool:
        """Record how a try ended without a lock on the run, and without evaluating it."""
        valid = self.storable(task.name, task.flow_id, outcome)
        is_held = bool(self._record([Report(task, valid)]))
        if task.limits:
            self._after_commit.admit({}, limit_names(task.limits))
        return is_held

    def _record(self, of_join: Sequence[Report]) -> dict[str, int | None]:
        with self._database.autocommit() as session:
            return session.reports.record(of_join, session.now())

    def _validated(self, reports: Sequence[Report], rejected: Rejected) -> list[Report]:
        valid: list[Report] = []
        for report in reports:
            with _Isolated([report], rejected):
                task = report.task
                outcome = self.storable(task.name, task.flow_id, report.outcome)
                is_same = outcome is report.outcome
                valid.append(report if is_same else Report(task, outcome, report.log))
        return valid

    def storable(self, facet: str, program_hash: str, outcome: Outcome) -> Outcome:
        """Return the outcome as it is recorded: with declared names, or as a failure.

        A worker calls this as part of the try, which its timeout ends.
        """
        if not isinstance(outcome, Succeeded):
            if isinstance(outcome, Failed):
                return self._limited(outcome)
            if isinstance(outcome, ActivationEnded):
                return self._storable_activation(facet, program_hash, outcome)
            return outcome
        if outcome.is_checked:
            return outcome
        result: Mapping[str, Json] = outcome.result
        try:
            if type(result) is not dict and not isinstance(result, Mapping):  # of a poller
                result = {OF_PYTHON: result}
            declared = self.declared(facet, program_hash)
            if declared is not None:
                names = [field.name for field in declared.returns]
                if not result:  # of a poller: nothing is None
                    result = answer_by_name(facet, None, names)
                elif result.keys() == {OF_PYTHON}:
                    result = named_result(facet, result, names)
                checks = Checks(self._limits.max_schema_checks)
                check_types(declared, result, checks, is_from_code=outcome.is_from_code)
            check_result(facet, result, *self._value_limits)
        except (ValueRefused, DoesNotFit) as problem:
            refused = refused_result(problem)
            return Failed(limited(refused.error, self._limits), retry=False)
        if not result:
            return outcome
        return Succeeded(outcome.result if result is outcome.result else dict(result), True)

    def _limited(self, failed: Failed) -> Failed:
        error = limited(stated_error(failed.error), self._limits)
        return failed if error is failed.error else Failed(error, failed.retry)

    def _storable_activation(
        self, facet: str, program_hash: str, outcome: ActivationEnded
    ) -> ActivationEnded:
        if outcome.failed is not None:
            outcome = replace(outcome, failed=self._limited(outcome.failed))
        if outcome.ended is None:
            return outcome
        ended = self.storable(facet, program_hash, outcome.ended)
        assert isinstance(ended, Succeeded | Failed)
        return outcome if ended is outcome.ended else replace(outcome, ended=ended)

    def declared(self, facet_name: str, program_hash: str) -> FacetPlan | None:
        """Return a facet as the program declares it."""
        plan = self._programs.known(program_hash)
        if plan is None:
            with self._database.autocommit() as session:
                plan = self._programs.plan(session, program_hash)
        return plan.facets.get(facet_name)

    def _log_refusal(self, task: TaskDefinition) -> None:
        with self._database.read() as session:
            found = session.tasks.by_id(task.uuid)
        if found is not None and _is_recorded(task, found[0]):
            # As after a commit whose answer was lost: the report was spooled, and delivered again.
            log.info(
                "the report of task %s of run %s had been recorded before",
                task.uuid,
                task.workflow_id[:8],
                extra={"action": "report_repeated", "run": task.workflow_id},
            )
            return
        reason = "another try has replaced it"
        if found is None:
            reason = "its run was removed"
        elif found[0].state == TaskState.CANCELED:
            reason = "its step was cancelled, or replaced by a retry"
        log.warning(
            "refused a late report of task %s of run %s: lease %d is no longer held; %s",
            task.uuid,
            task.workflow_id[:8],
            task.lease,
            reason,
            extra={"action": "report_refused", "run": task.workflow_id},
        )


def _is_recorded(task: TaskDefinition, found: TaskDefinition) -> bool:
    """Whether a try has completed under this very lease: only its holder can have reported that."""
    return found.state == TaskState.COMPLETED and found.lease == task.lease
