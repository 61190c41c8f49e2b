"""The continuation policy: which of the tasks that its report makes ready a worker takes.

They need neither a wake-up nor a claim: the commit of the report writes them as claimed. A worker
must stay available for other task lists, so it takes several quick tasks or one slow task, and
none after its time slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from flowengine.evaluator import TaskDefinition
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.batch_sizing import BatchSizing


class Continuation:
    """The choice for one report, which may concern many runs: each of them asks."""

    def __init__(
        self,
        identity: WorkerIdentity,
        sizing: BatchSizing,
        names: Collection[str],
        lists: Collection[str],
        *,
        batch: int,
        seconds: float,
    ) -> None:
        """Take at most so many seconds of work of a facet, and no group wider than a batch."""
        self.identity = identity
        self._sizing, self._names, self._lists, self._batch = sizing, names, lists, batch
        self._seconds = seconds
        self._left: dict[str, int] = {}  #: how many more tasks of a facet
        self._room = 4 * batch
        self._took_slow = False

    def choose(self, due: Sequence[TaskDefinition]) -> Collection[str]:
        """Return the ids of the tasks that this worker takes."""
        ours = [task for task in due if self._can_run(task)]
        # The tasks of a wide group are left for all workers.
        width = Counter(task.join for task in ours if task.join) if len(ours) > self._batch else {}
        quick: list[TaskDefinition] = []
        for task in ours:
            if task.losses or task.runs_once or not self._sizing.is_quick(task.name):
                continue
            if width.get(task.join, 0) > self._batch or len(quick) == self._room:
                continue
            if task.name not in self._left:
                self._left[task.name] = self._sizing.fitting([task.name], self._seconds)
            if self._left[task.name]:
                self._left[task.name] -= 1
                quick.append(task)
        self._room -= len(quick)
        if quick or self._took_slow or not ours:
            return {task.uuid for task in quick}
        if width.get(ours[0].join, 0) > self._batch:
            return ()
        self._took_slow = True
        return {ours[0].uuid}

    def _can_run(self, task: TaskDefinition) -> bool:
        if self._lists and task.task_list_name not in self._lists:
            return False
        return task.name in self._names
