"""Reports: how tries ended is recorded, and what follows from it decided."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from flowengine.engine import result_validation
from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Report
from flowengine.engine.staging import Commit, ContinuationPolicy
from flowengine.errors import DoesNotFit, FlowengineError, ValueRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import HandedOver, Succeeded, TryOutcome
from flowengine.program.nodes import Json
from flowengine.store import reports
from flowengine.store.outages import is_away
from flowengine.store.reports import Ended, Recorded

log = logging.getLogger("flowengine")


class NotAllReported(FlowengineError):
    """Some reports could not be taken in: something is wrong with their runs."""

    def __init__(
        self, left: Sequence[tuple[Report, Exception]], taken: list[TaskDefinition]
    ) -> None:
        super().__init__(left, taken)
        self.left, self.taken = left, taken

    def __str__(self) -> str:
        report, problem = self.left[0]
        number = f"{len(self.left)} reports" if len(self.left) > 1 else "a report"
        return f"{number} cannot be taken in, first that of {report.task.step_path}: {problem}"


@contextmanager
def _apart(found: Sequence[Report], left: list[tuple[Report, Exception]]) -> Iterator[None]:
    """What goes wrong with these reports, while the database is there, concerns no others."""
    try:
        yield
    except Exception as problem:
        if is_away(problem):
            raise
        left += [(report, problem) for report in found]


class Reporter(AfterCommit):
    """The part of an engine that hears how tries ended."""

    def report(
        self, task: TaskDefinition, outcome: TryOutcome | HandedOver, *, in_chord: bool = False
    ) -> bool:
        """Record how a try ended and decide what follows; False: the lease was lost before."""
        try:
            accepted, _ = self.report_many([Report(task, outcome)], in_chord=in_chord)
        except NotAllReported as found:
            raise found.left[0][1] from None
        return task.uuid in accepted

    def report_many(
        self,
        reports: Sequence[Report],
        *,
        in_chord: bool = False,
        continuation: ContinuationPolicy | None = None,
    ) -> tuple[set[str], list[TaskDefinition]]:
        """Record how tries ended, and decide what follows from them.

        A result that feeds a join with others is only counted: who reports the last of them
        evaluates, or the chord's callback does. Everything else is evaluated at once. Returns
        the tasks whose report was accepted, and those that the taker goes on with.

        Raises NotAllReported if some could not be taken in though the database is there: each
        run stands for itself, and all others were.
        """
        of_runs: dict[str, list[Report]] = {}
        of_joins: dict[str, list[Report]] = {}
        handed: list[Report] = []
        left: list[tuple[Report, Exception]] = []
        for report in self._all_storable(reports, left):
            task = report.task
            if task.join_id is not None and isinstance(report.outcome, Succeeded | HandedOver):
                of_joins.setdefault(task.join_id, []).append(report)
            elif isinstance(report.outcome, HandedOver):
                handed.append(report)
            else:
                of_runs.setdefault(task.workflow_id, []).append(report)
        accepted = set(self._count(handed)) if handed else set()
        taken: list[TaskDefinition] = []
        for _, found in sorted(of_joins.items()):
            counted: dict[str, Recorded] = {}
            with _apart(found, left):
                counted = self._count(found)
            accepted |= counted.keys()
            if in_chord or not any(counts.is_last for counts in counted.values()):
                continue
            if commit := self._taken_in(found[0].task.workflow_id, continuation):
                taken += self._after([commit], continuation)
        if of_runs:
            commits = self._at_once(of_runs, continuation)
            for run_id, found in of_runs.items():
                if run_id in commits:
                    accepted |= {report.task.uuid for report in found}
                    continue
                with _apart(found, left):
                    ended = [report.ended for report in found]
                    commits[run_id], late = self._committer.under_lock(run_id, ended, continuation)
                    accepted |= late
            taken += self._after(list(commits.values()), continuation)
        if left:
            raise NotAllReported(left, taken)
        for report in reports:
            # A workflow that was gone on with may have answered the step before we could say that
            # it was begun. Nothing is late then.
            if report.task.uuid not in accepted and not isinstance(report.outcome, HandedOver):
                self._refused(report.task.workflow_id, report.task.uuid, report.task.lease)
        return accepted, taken

    def _at_once(
        self, of_runs: Mapping[str, Sequence[Report]], continuation: ContinuationPolicy | None
    ) -> dict[str, Commit]:
        try:
            return self._committer.at_once(of_runs, continuation)
        except Exception as problem:
            if is_away(problem):
                raise
            return {}  # one of them cannot be decided or written: each for itself shows which

    def end_try(
        self, run_id: str, task_id: str, lease: int, outcome: TryOutcome | HandedOver
    ) -> bool:
        """End somebody else's try, and commit all that follows from it together with it."""
        commit, accepted = self._committer.under_lock(run_id, [Ended(task_id, lease, outcome)])
        if not accepted:
            self._refused(run_id, task_id, lease)
        self._after([commit])
        return bool(accepted)

    def record(self, task: TaskDefinition, outcome: TryOutcome) -> bool:
        """Record how a try ended, and leave the evaluation to somebody else.

        It takes no lock on the run.
        """
        return bool(self._count([self._storable(Report(task, outcome))]))

    def _count(self, found: Sequence[Report]) -> dict[str, Recorded]:
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

    def _all_storable(
        self, found: Sequence[Report], left: list[tuple[Report, Exception]]
    ) -> list[Report]:
        storable: list[Report] = []
        for report in found:
            with _apart([report], left):
                storable.append(self._storable(report))
        return storable

    def _storable(self, report: Report) -> Report:
        outcome = self.storable(report.task.name, report.task.flow_id, report.outcome)
        return report if outcome is report.outcome else Report(report.task, outcome)

    def storable(
        self, facet: str, program_hash: str, outcome: TryOutcome | HandedOver
    ) -> TryOutcome | HandedOver:
        """An outcome of a facet's try as it is recorded: with declared names, or a failure."""
        if not isinstance(outcome, Succeeded):
            return outcome
        result: Mapping[str, Json] = outcome.result
        try:
            if result_validation.wants_names(result):
                result = result_validation.named(facet, result, self._declared(facet, program_hash))
            result_validation.check(facet, result, self.settings.max_value_bytes)
        except (ValueRefused, DoesNotFit) as problem:
            return result_validation.refused(problem)
        return outcome if result is outcome.result else Succeeded(dict(result))

    def _declared(self, facet_name: str, program_hash: str) -> list[str]:
        """The returns that a facet declares in the program of its run."""
        plan = self.programs.known(program_hash)
        if plan is None:
            with self.database.direct() as executor:
                plan = self.programs.plan(executor, program_hash)
        facet = plan.facets.get(facet_name)
        return [field.name for field in facet.returns] if facet else []
