"""The task queue: claim tasks, keep them alive, give them back."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from flowengine.dispatch import Notifier
from flowengine.engine.worker_limits import LimitedClaims
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.store import Session, Store
from flowengine.store.claims import Claim, WorkerIdentity
from flowengine.store.failures import is_unavailable
from flowengine.store.recovery_queries import HeldTask

log = logging.getLogger("flowengine")

_MIN_PARK_SECONDS = 0.1  # below it, workers would claim and park the same tasks in a busy loop


class TaskQueue:
    def __init__(
        self,
        database: Store,
        notifier: Notifier,
        limited: LimitedClaims,
        admit: Callable[[Mapping[str, str]], object] = lambda _: None,
    ) -> None:
        """`admit` is called with the queues of tasks that wait for limits again."""
        self._database, self._notifier, self._admit = database, notifier, admit
        self._limited = limited
        self._last_tenant = ""  #: of the tasks that a poller has claimed

    def claim_task(
        self,
        task_names: Sequence[str],
        task_list: str = "default",
        identity: WorkerIdentity | None = None,
    ) -> TaskDefinition | None:
        """Claim one due task of those facets, or return None. A task has one holder at a time."""
        claimed = self.claim(task_names, task_list, identity or WorkerIdentity(), most=1)
        return claimed[0] if claimed else None

    def claim(
        self,
        task_names: Sequence[str],
        task_list: str,
        identity: WorkerIdentity,
        *,
        most: int,
        tenant: str | None = None,
    ) -> list[TaskDefinition]:
        """Claim up to `most` due tasks of those facets, of one tenant after the other.

        With `tenant`, tasks of this one alone.
        """
        claim = self.claim_batch(
            task_names,
            task_list,
            identity,
            most=most,
            quick=task_names,
            after=self._last_tenant,
            tenant=tenant,
        )
        if claim.tasks:
            self._last_tenant = claim.tasks[0].tenant
        return claim.tasks

    def claim_batch(
        self,
        task_names: Sequence[str],
        task_list: str,
        identity: WorkerIdentity,
        *,
        most: int,
        quick: Collection[str],
        after: str = "",
        tenant: str | None = None,
    ) -> Claim:
        """Claim the most urgent due task, and up to `most` tasks if it is of a `quick` facet.

        Only tasks of quick facets are batched, and a batch is of one tenant: the next behind
        `after` that has due tasks. The result also says whether more are due.
        """
        if not task_names:
            return Claim([])

        def take(session: Session, limit: int, runs: Collection[str] | None = None) -> Claim:
            if runs is not None:
                ids = session.worker_limits.due_of_runs(task_list, task_names, runs, tenant)
                return session.claims.claim_these(
                    ids, task_list, identity, names=task_names, limit=1
                )
            return session.claims.claim(
                task_names,
                task_list,
                identity,
                limit=limit,
                quick=quick,
                after=after,
                tenant=tenant,
            )

        if self._limited.apply_to(identity):
            return self._limited.claim(identity, task_list, most, take)
        with self._database.autocommit() as session:
            return take(session, most)

    def is_work_due(self, task_lists: Collection[str]) -> bool:
        """Whether a task of these lists may be due, or of any list if none is given."""
        try:
            with self._database.autocommit_read() as session:
                return session.claims.is_any_due(task_lists)
        except Exception as problem:
            if not is_unavailable(problem):
                raise
            return True  # nothing is known; whatever the caller does next meets the outage

    def claim_one(
        self, task_id: str, task_list: str, identity: WorkerIdentity
    ) -> TaskDefinition | None:
        """Claim this task of a list if it is pending and due, whatever limits the server has."""
        claimed = self.claim_these([task_id], task_list, identity).tasks
        return claimed[0] if claimed else None

    def claim_these(
        self,
        task_ids: Sequence[str],
        task_list: str,
        identity: WorkerIdentity,
        *,
        names: Collection[str] | None = None,
        most: int | None = None,
    ) -> Claim:
        """Claim those of these tasks of a list that are pending and due, `most` at most.

        With `names`, only tasks of these facets. Tasks that must run alone are not batched. The
        result also says whether other tenants have due tasks in the list. Without `most` all are
        claimed, whatever limits the server has: its caller works on these tasks alone.
        """

        def take(session: Session, limit: int | None, runs: Collection[str] | None = None) -> Claim:
            ids = task_ids if runs is None else session.worker_limits.of_runs(task_ids, runs)
            return session.claims.claim_these(ids, task_list, identity, names=names, limit=limit)

        if most is not None and self._limited.apply_to(identity):
            return self._limited.claim(identity, task_list, most, take)
        with self._database.autocommit() as session:
            return take(session, most)

    def heartbeat(self, task: TaskDefinition, progress: str | None = None) -> bool:
        """Send a heartbeat for a running task; False if its lease was lost.

        `progress` is JSON, which readers of the step see.
        """
        with self._database.write() as session:
            return session.reports.heartbeat(task.uuid, task.lease, session.now(), progress)

    def release(self, task: TaskDefinition) -> bool:
        """Release a claimed task unfinished."""
        return self.release_held([(task.uuid, task.lease)])

    def held_since(self, identity: WorkerIdentity, seconds: float) -> list[HeldTask]:
        """Return the tasks that this process has held for longer than that."""
        with self._database.read() as session:
            before = session.now() - round(seconds * 1000)
            return session.recovery.held_since(identity, before)

    def release_held(self, held: Sequence[tuple[str, int]]) -> bool:
        """Release tasks, given by id and lease, in one statement; False if none was still held."""
        with self._database.write() as session:
            released = session.reports.release(held, session.now())
        due = Counter(task.task_list for task in released if task.state == TaskState.PENDING)
        if due:
            self._notifier.notify(due)
        waiting = {
            task.queue: task.limits or ""
            for task in released
            if task.queue is not None and task.state == TaskState.WAITING
        }
        if waiting:
            self._admit(waiting)
        return bool(released)

    def park(self, tasks: Sequence[TaskDefinition], circuit: str, seconds: float) -> int:
        """Release claimed tasks whose circuit breaker is open, due again after that many seconds.

        Pending tasks of the same breaker in the same lists get the same due time: otherwise each
        would be claimed only to be parked. Returns the number of parked tasks.
        """
        wait = math.ceil(max(seconds, _MIN_PARK_SECONDS) * 1000)
        with self._database.write() as session:
            now = session.now()
            held = [(task.uuid, task.lease) for task in tasks]
            parked = session.reports.park(held, now + wait, now)
            task_lists = sorted({task.task_list_name for task in tasks})
            for task_list in task_lists:
                parked += session.reports.park_waiting(task_list, circuit, now + wait, now)
        log.info(
            "parked %d tasks of %s for %.1f s%s",
            parked,
            ", ".join(task_lists),
            wait / 1000,
            f": circuit breaker {circuit!r} is open" if circuit else "",
            extra={"action": "tasks_parked", "circuit": circuit},
        )
        return parked
