"""Tasks: claimed, kept alive, handed back."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence

from flowengine.engine.reporter import Reporter
from flowengine.evaluator import TaskDefinition
from flowengine.store import claims, recovery_queries, reports
from flowengine.store.claims import Claim, WorkerIdentity
from flowengine.store.recovery_queries import HeldTask

log = logging.getLogger("flowengine")


class TaskApi(Reporter):
    """The part of an engine that workers and pollers speak to."""

    def claim_task(
        self,
        task_names: Sequence[str],
        task_list: str = "default",
        identity: WorkerIdentity | None = None,
    ) -> TaskDefinition | None:
        """Take one due task of those names, or None; nobody else gets the same one."""
        claimed = self.claim(task_names, task_list, identity or WorkerIdentity(), most=1)
        return claimed[0] if claimed else None

    def claim(
        self,
        task_names: Sequence[str],
        task_list: str,
        identity: WorkerIdentity,
        *,
        most: int,
        quick: Collection[str] | None = None,
    ) -> list[TaskDefinition]:
        """Take the most urgent due task of those names, and more behind it, up to `most`.

        Only if the first is of those that are `quick`, and only quick ones; by default all are.
        """
        quick = task_names if quick is None else quick
        return self.claim_batch(task_names, task_list, identity, most=most, quick=quick).tasks

    def claim_batch(
        self,
        task_names: Sequence[str],
        task_list: str,
        identity: WorkerIdentity,
        *,
        most: int,
        quick: Collection[str],
    ) -> Claim:
        """The same, with what is known of those that were not taken."""
        if not task_names:
            return Claim([])
        with self.database.direct() as executor:
            now = self.database.given_time
            return claims.claim(executor, task_names, task_list, identity, now, most, quick)

    def claim_one(self, task_id: str, identity: WorkerIdentity) -> TaskDefinition | None:
        """Take this task, if it is still to be had."""
        claimed = self.claim_these([task_id], identity)
        return claimed[0] if claimed else None

    def claim_these(
        self,
        task_ids: Sequence[str],
        identity: WorkerIdentity,
        *,
        names: Collection[str] | None = None,
        most: int | None = None,
    ) -> list[TaskDefinition]:
        """Take those of these tasks that are still to be had, the first so many of them.

        With `names` only those of these facets; several only of those that may be taken together.
        """
        with self.database.direct() as executor:
            now = self.database.given_time
            return claims.claim_these(executor, task_ids, identity, now, names, most)

    def heartbeat(self, task: TaskDefinition) -> bool:
        """Show that a task is being worked on; False: the lease was lost."""
        with self.database.write() as connection:
            now = self.database.now(connection)
            return reports.beat(connection, task.uuid, task.lease, now)

    def release(self, task: TaskDefinition) -> bool:
        """Hand a claimed task back unfinished."""
        return self.release_by_lease(task.uuid, task.lease, task.task_list_name)

    def held_since(self, identity: WorkerIdentity, seconds: float) -> list[HeldTask]:
        """Return what this claimant has held for longer than that."""
        with self.database.read() as connection:
            before = self.database.now() - round(seconds * 1000)
            return recovery_queries.held_since(connection, identity, before)

    def release_many(self, tasks: Sequence[TaskDefinition]) -> None:
        """Hand claimed tasks back unfinished, all together."""
        with self.database.direct() as executor:
            held = [(task.uuid, task.lease) for task in tasks]
            released = reports.release(executor, held, self.database.now())
        if released:
            self.notifier.notify(Counter(released))

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

    def release_by_lease(self, task_id: str, lease: int, task_list: str) -> bool:
        """The same, for whoever knows no more of a task than that."""
        with self.database.direct() as executor:
            released = reports.release(executor, [(task_id, lease)], self.database.now())
        if released:
            self.notifier.notify({task_list: 1})
        return bool(released)
