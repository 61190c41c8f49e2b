"""What a process holds, and how it gets rid of it: reported, handed back, parked, or on disk.

Whatever happens, nothing may stay here that nobody works on: its holder lives, so nobody else
would ever look after it. A try is known by its task and its lease: the same task may be handed
back by one thread and claimed by another in the same moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence

from flowengine.engine import Engine
from flowengine.engine.recovery import release_dropped, release_unstarted
from flowengine.engine.reporter import NotAllReported
from flowengine.engine.staging import ContinuationPolicy
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Report
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.spool import Spool

log = logging.getLogger("flowengine")

_Try = tuple[str, int]  # the ids of a task and of its lease


class ClaimedTasks:
    """The claimed tasks of one process. Shared by all its threads."""

    def __init__(self, engine: Engine, identity: WorkerIdentity) -> None:
        self._engine, self._identity = engine, identity
        self._spool = Spool(engine.settings.spool_directory)
        self._changed = threading.Condition()
        self._held: dict[_Try, TaskDefinition] = {}
        self._untold: set[_Try] = set()  #: have ended, and their reports should be on disk
        self._disowned: set[_Try] = set()  #: handed back before their claim was heard of

    def hold(self, tasks: Sequence[TaskDefinition]) -> list[TaskDefinition]:
        """Hold what was claimed; return what of it is ours to work on."""
        with self._changed:
            ours = [task for task in tasks if (task.uuid, task.lease) not in self._disowned]
            self._held |= {(task.uuid, task.lease): task for task in ours}
        return ours

    def _let_go(self, tasks: Sequence[TaskDefinition]) -> None:
        with self._changed:
            for task in tasks:
                self._held.pop((task.uuid, task.lease), None)
            self._changed.notify_all()

    def left_after(self, max_wait: float) -> list[TaskDefinition]:
        """Wait a while until nothing is held; return what still is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held, timeout=max_wait)
            return list(self._held.values())

    # --- getting rid of it ---

    def report(
        self, reports: Sequence[Report], *, in_chord: bool, continuation: ContinuationPolicy | None
    ) -> list[TaskDefinition]:
        """Report; what cannot be told waits on disk. Returns what to go on with."""
        left: Sequence[tuple[Report, Exception]] = ()
        try:
            _, taken = self._engine.report_many(
                reports, in_chord=in_chord, continuation=continuation
            )
        except NotAllReported as found:
            left, taken = found.rejected, found.continued
            log.error("%s", found, exc_info=left[0][1], extra={"action": "report_failed"})
        except Exception as problem:
            left, taken = [(report, problem) for report in reports], []
        for report, why in left:
            self._keep(report, why)
        self._let_go([report.task for report in reports])
        return self.hold(taken)

    def _keep(self, report: Report, why: Exception) -> None:
        task = report.task
        with self._changed:
            self._untold.add((task.uuid, task.lease))
        try:
            path = self._spool.keep(task, report.outcome)
        except Exception as problem:
            about = {"action": "report_lost", "run": task.workflow_id}
            log.error("the report of %s is lost: %s", task.step_path, problem, extra=about)
        else:
            about = {"action": "report_spooled", "run": task.workflow_id}
            log.warning("the report of %s waits in %s: %s", task.step_path, path, why, extra=about)

    def release_by_lease(self, tasks: Sequence[TaskDefinition]) -> None:
        try:
            self._engine.release_many(tasks)
        except Exception as problem:
            # Nobody holds them any more, so they are found as what was forgotten.
            log.warning("cannot hand tasks back: %s", problem, extra={"action": "kept_in_hand"})
        self._let_go(tasks)

    def park(self, tasks: Sequence[TaskDefinition], seconds: float) -> None:
        try:
            self._engine.park(tasks, tasks[0].circuit, seconds)
        except Exception as problem:
            log.warning("cannot park tasks: %s", problem, extra={"action": "kept_in_hand"})
        self._let_go(tasks)

    def release_forgotten(self) -> None:
        """Hand back what the database says we hold, and we do not.

        A claim may be committed and its answer lost, with the connection: nobody would ever
        work on these tasks, for their holder lives. If the answer comes after all, they are
        not ours any more. What has a report on disk is no such task; and if the report is not
        there, nobody can say that it never began.
        """
        age = 2 * self._engine.settings.heartbeat_interval
        found = {(t.task_id, t.lease): t for t in self._engine.held_since(self._identity, age)}
        with self._changed:
            unknown = found.keys() - self._held.keys()
            lacking = {a_try for a_try in unknown if not self._spool.has(*a_try)}
            begun, unheard = lacking & self._untold, lacking - self._untold
            self._disowned |= unheard
        self._forget_delivered(found.keys())
        if unheard:
            log.warning(
                "handing back %d tasks whose claim this process never heard of",
                len(unheard),
                extra={"action": "claims_forgotten"},
            )
        release_unstarted(self._engine, [found[a_try] for a_try in sorted(unheard)])
        release_dropped(self._engine, [found[a_try] for a_try in sorted(begun)])

    def _forget_delivered(self, running: Collection[_Try]) -> None:
        with self._changed:
            untold = self._untold - self._held.keys()  # those are being written just now
        told = {a_try for a_try in untold if a_try not in running and not self._spool.has(*a_try)}
        with self._changed:
            self._untold -= told
