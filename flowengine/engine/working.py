"""Tasks: claimed, reported, handed back."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from flowengine.engine import returning
from flowengine.engine.advancing import Taker
from flowengine.engine.driving import Driving
from flowengine.engine.settling import Report
from flowengine.errors import DoesNotFit, ValueRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.happenings import Failed, HandedOver, Succeeded, TryOutcome
from flowengine.program.nodes import Json
from flowengine.store import claims, codec, reports, sweeping
from flowengine.store.claims import Claim, Claimant
from flowengine.store.reports import Ended
from flowengine.store.sweeping import Held

log = logging.getLogger("flowengine")


class Working(Driving):
    """The part of an engine that workers and pollers speak to."""

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
        return self.claim_batch(task_names, task_list, claimant, most=most, quick=quick).tasks

    def claim_batch(
        self,
        task_names: Sequence[str],
        task_list: str,
        claimant: Claimant,
        *,
        most: int,
        quick: Collection[str],
    ) -> Claim:
        """The same, with what is known of those that were not taken."""
        if not task_names:
            return Claim([])
        with self.database.direct() as executor:
            now = self.database.given_time
            return claims.claim(executor, task_names, task_list, claimant, now, most, quick)

    def claim_one(self, task_id: str, claimant: Claimant) -> TaskDefinition | None:
        """Take this task, if it is still to be had."""
        claimed = self.claim_these([task_id], claimant)
        return claimed[0] if claimed else None

    def claim_these(
        self,
        task_ids: Sequence[str],
        claimant: Claimant,
        *,
        names: Collection[str] | None = None,
        most: int | None = None,
    ) -> list[TaskDefinition]:
        """Take those of these tasks that are still to be had, the first so many of them.

        With `names` only those of these facets; several only of those that may be taken together.
        """
        with self.database.direct() as executor:
            now = self.database.given_time
            return claims.claim_these(executor, task_ids, claimant, now, names, most)

    def report(
        self, task: TaskDefinition, outcome: TryOutcome | HandedOver, *, in_chord: bool = False
    ) -> bool:
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
        handed: list[Report] = []
        for report in map(self._storable, reports):
            task = report.task
            if task.join_id is not None and isinstance(report.outcome, Succeeded | HandedOver):
                of_joins.setdefault(task.join_id, []).append(report)
            elif isinstance(report.outcome, HandedOver):
                handed.append(report)
            else:
                of_runs.setdefault(task.workflow_id, []).append(report)
        accepted = set(self._count(handed)) if handed else set()
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
            # A workflow that was gone on with may have answered the step before we could say that
            # it was begun. Nothing is late then.
            if report.task.uuid not in accepted and not isinstance(report.outcome, HandedOver):
                self._refused(report.task.workflow_id, report.task.uuid, report.task.lease)
        return accepted, taken

    def end_try(
        self, run_id: str, task_id: str, lease: int, outcome: TryOutcome | HandedOver
    ) -> bool:
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
            result: Mapping[str, Json] = outcome.result
            if returning.wants_names(result):
                result = returning.named(task.name, result, self._declared(task))
            for name, value in result.items():
                codec.check_value(f"{name!r} returned by {task.name}", value, limit)
        except (ValueRefused, DoesNotFit) as problem:
            error = {"type": type(problem).__name__, "message": str(problem)}
            return Report(task, Failed(error, retry=False))
        return report if result is outcome.result else Report(task, Succeeded(dict(result)))

    def _declared(self, task: TaskDefinition) -> list[str]:
        """The returns that the task's facet declares in the program of its run."""
        plan = self.programs.known(task.flow_id)
        if plan is None:
            with self.database.direct() as executor:
                plan = self.programs.plan(executor, task.flow_id)
        facet = plan.facets.get(task.name)
        return [field.name for field in facet.returns] if facet else []

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

    def park(self, tasks: Sequence[TaskDefinition], circuit: str, seconds: float) -> int:
        """Hand back claimed tasks that a circuit does not let through; due again in a while.

        What else waits for the circuit in their lists is made to wait as long, for it would
        only be claimed and handed back. Returns how many wait now.
        """
        # A moment at least: who is told to come back at once would ask without end.
        wait = math.ceil(max(seconds, 0.1) * 1000)
        with self.database.direct() as executor:
            now = self.database.now()
            held = [(task.uuid, task.lease) for task in tasks]
            parked = reports.park(executor, held, now + wait, now)
            for task_list in sorted({task.task_list_name for task in tasks}):
                parked += reports.park_waiting(executor, task_list, circuit, now + wait, now)
        log.info(
            "%d tasks wait for circuit %r, for %.1f s",
            parked,
            circuit,
            wait / 1000,
            extra={"action": "tasks_parked", "circuit": circuit},
        )
        return parked

    def hand_back(self, task_id: str, lease: int, task_list: str) -> bool:
        """The same, for whoever knows no more of a task than that."""
        with self.database.direct() as executor:
            released = reports.release(executor, [(task_id, lease)], self.database.now())
        if released:
            self.bell.ring({task_list: 1})
        return bool(released)
